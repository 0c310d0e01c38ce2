#pragma once
/* A kernel's arguments as a launch hands them over: numbers of 8 bytes, and structs of a multiple of that. */
template <int... I> struct Indices {};
template <int COUNT, int... I> struct Counted : Counted<COUNT - 1, COUNT - 1, I...> {};
template <int... I> struct Counted<0, I...> {
    typedef Indices<I...> type;
};
template <class... T, int... I>
static void call(void (*kernel)(T...), const char *const *places, Indices<I...>)
{
    kernel(*(const T *)places[I]...);
}
template <class... T> static void call(void (*kernel)(T...), const void *arguments)
{
    const char *next = (const char *)arguments;
    const auto take = [&](unsigned long nbytes) {
        const char *place = next;
        next += (nbytes + 7) / 8 * 8;
        return place;
    };
    const char *const places[] = {take(sizeof(T))..., nullptr};
    call(kernel, places, typename Counted<sizeof...(T)>::type());
}
