#pragma once
/* Words that are their own flags, by which the blocks of a group exchange results through L2: no counter,
   no fence, no zeroing between launches.

   Every step a block needs what all blocks of its group computed in the step before. It lies in
   device memory, where L2 is what all of them see, in two slots that steps use in turn:
   [slot][word][row]. A word is written and read by one access of 16 bytes. The last bit of the
   mantissa of its last element is its tag, which is flipped whenever the word is written. A
   reader knows which tag a word will have, and reads it again until it has that.

   Why no block reads early: a word with the new tag is the new word, all of it, since an access of
   16 bytes is one access. GPUs do so: no word of a million launches was torn (own_stress.json). PTX
   does not promise it of `v4.u32`, which it models as four accesses in any order ("Vector
   Data-types"); only of `b128`, which CUDA 12.3 and newer have.
   Why no block overwrites what is still to be read: a block writes step e + 2 into the slot of step
   e only after it has read all of step e + 1, and each block wrote its part of e + 1 only after it
   had read all of e (all of its threads pass a barrier in between, after the products).
   Why no block waits forever: all blocks of a launch are on the device at once (a cooperative
   launch), each waits only for words of the step before, and those of the first step are written
   before any block waits.
   Why a launch needs no zeroed memory: a block finds the tags of the previous launch in its own
   words, which no other block writes. Each launch on a buffer writes all words of a group's slot
   equally often. It has to be zeroed before the first launch only; here every call does so, since
   workspaces are shared. (For a backward kernel on ragged rows the forward pass may, in the reserve
   space, which only its own backward pass uses: `buffer_layout.py`.)

   LAYERS that run at once have a slot for each step, which the call clears before the launch: every
   word is written once, with the tag 1, and stays. So nothing is overwritten, however much later a
   layer is than the one that it reads. No block waits forever: let the diagonal of an exchange be its number
   plus that of its layer, in the order in which layers begin. A block waits for words of one diagonal,
   of its own layer and of the one that it reads, and then writes into the next diagonal.

   A TEAM has two exchanges in a step, one after the other: words among its blocks, then shares among
   the blocks of one place in all teams. They have slots and tags of their own, and each is as above: a
   block sends its part of e + 1 after it has read all of e that it is sent, with a barrier between. */

#include "dtype.cuh"
#include "ptx_l2.cuh"

namespace dnnffi {

/* Words are of float32 where FACTORS are; a SHARE is always. */
template <bool SHARE> constexpr bool FLOATS = FACTORS == FLOAT32 || SHARE;
template <bool SHARE = false> constexpr u32 TAG = FLOATS<SHARE> ? 1u : 0x10000u;
template <bool SHARE = false>
constexpr u32 NAN_BITS = FACTORS == FLOAT16 && !FLOATS<SHARE> ? 0x7e000000u : 0x7fc00000u;

/* After this many polls, which take some seconds, a block assumes that the others are gone. It
   continues with NaN and does not wait again: a defect shows in the results and does not hang the
   device. */
constexpr u32 MAX_POLLS = 1u << 22;

struct Tags
{
    u32 found[2]; /* of each slot, from the previous launch */

    /* Finds the tags of a word of this block in both slots, which nobody else writes. */
    template <bool SHARE = false> DEVICE void read(const uint4 *word)
    {
        for (int slot = 0; slot < 2; slot++)
            found[slot] = load_word(word + slot * Config::SLOT_WORDS).w & TAG<SHARE> ? 1 : 0;
    }

    /* The tag of the words of an exchange. */
    template <bool SHARE = false> DEVICE u32 of(int exchange) const
    {
        if (Config::LAYERS > 1) return TAG<SHARE>;
        const u32 turned = 1u ^ ((exchange >> 1) & 1);
        return ((exchange & 1 ? found[1] : found[0]) ^ turned) ? TAG<SHARE> : 0u;
    }
};

/* The word with a tag in the place of its last bit. Its last element is rounded to one bit less;
   what would then be infinite is truncated, and NaN and infinity stay what they are. */
template <bool SHARE = false> DEVICE uint4 tagged(uint4 word, u32 tag)
{
    if constexpr (FLOATS<SHARE>) {
        word.w = (word.w & ~TAG<SHARE>) | tag; /* products in TF32 do not read this bit */
    } else {
        constexpr u32 LARGEST = FACTORS == FLOAT16 ? 0x7bffu : 0x7f7fu;
        u32 last = word.w >> 16;
        const u32 size = last & 0x7fffu;
        if (size < LARGEST) last += (last >> 1) & 1;
        if (size > LARGEST + 1) last = LARGEST + 1 + (FACTORS == FLOAT16 ? 0x200u : 0x40u);
        word.w = (word.w & 0xffffu) | ((last & 0xfffeu) << 16) | tag;
    }
    return word;
}

template <bool SHARE = false> DEVICE bool has_tag(const uint4 &word, u32 tag)
{
    return ((word.w ^ tag) & TAG<SHARE>) == 0;
}

template <bool SHARE = false> DEVICE uint4 untagged(uint4 word)
{
    word.w &= ~TAG<SHARE>;
    return word;
}

/* The same, and NaN if words are `late`: in all elements of a word that is COPIED to shared memory, in the last
   two of one that is multiplied where it arrived. Those are the elements that one instruction reads together, of
   a copy or of a product, and each takes an instruction. If only the last element did, the compiler might copy that
   element into another register right after the load, and so wait for the word before it issues other loads. */
template <bool COPIED> DEVICE uint4 received(uint4 word, bool late)
{
    const u32 missing = late ? NAN_BITS<> : 0;
    if constexpr (COPIED) word.x |= missing, word.y |= missing;
    word.z |= missing;
    word.w = (word.w & ~TAG<>) | missing;
    return word;
}

/* The replacement of a word that never arrived: NaN in each 32 bits. */
template <bool SHARE = false> DEVICE uint4 lost(u32 tag)
{
    constexpr u32 nan = NAN_BITS<SHARE>;
    return make_uint4(nan, nan, nan, nan | tag);
}

/* Asks for a word. If it is not `there`, it is zeros and need not be waited for. */
template <bool ALWAYS_THERE> DEVICE void request_word(uint4 &word, const uint4 *at, bool there, u32 tag)
{
    if constexpr (ALWAYS_THERE) word = load_word(at);
    else {
        word = make_uint4(0, 0, 0, tag);
        load_word_if(there, word, at);
    }
}

/* Asks for words again until they have their tag; sets `late` if they never do. `request` asks for a word. */
template <int COUNT, bool SHARE = false, class Request>
DEVICE void wait_for_all(uint4 *words, u32 tag, bool &late, Request request)
{
    u32 polls = late ? MAX_POLLS : 0;
    while (true) {
        u32 other = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) other |= words[i].w ^ tag;
        if ((other & TAG<SHARE>) == 0) return;
        if (polls++ == MAX_POLLS) break;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (!has_tag<SHARE>(words[i], tag)) request(words[i], i);
    }
    late = true;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (!has_tag<SHARE>(words[i], tag)) words[i] = lost<SHARE>(tag);
}

/* The same, but asks for a word again before it looks at the next one: faster where all threads of a
   block wait for the same step (measured). */
template <int COUNT, class Request>
DEVICE void wait_for_each(uint4 *words, u32 tag, bool &late, Request request)
{
    u32 polls = 0;
    bool all;
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (!has_tag(words[i], tag)) {
                if (late) words[i] = lost(tag);
                else {
                    request(words[i], i);
                    all = false;
                }
            }
        if (++polls > MAX_POLLS) late = true;
    } while (!all);
}

} // namespace dnnffi
