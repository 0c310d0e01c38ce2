#pragma once
/* A kernel's arguments, 8 bytes each, as a launch hands them over. */
template <int... I> struct Indices {};
template <int COUNT, int... I> struct Counted : Counted<COUNT - 1, COUNT - 1, I...> {};
template <int... I> struct Counted<0, I...> {
    typedef Indices<I...> type;
};
template <class... T, int... I>
static void call(void (*kernel)(T...), const char *arguments, Indices<I...>)
{
    kernel(*(const T *)(arguments + 8 * I)...);
}
template <class... T> static void call(void (*kernel)(T...), const void *arguments)
{
    call(kernel, (const char *)arguments, typename Counted<sizeof...(T)>::type());
}
