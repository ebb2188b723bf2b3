// From the byte strings of PiBench to the 64-bit numbers of the index, and back.
#ifndef INDELIBLE_PIBENCH_WORD_CODEC_HPP
#define INDELIBLE_PIBENCH_WORD_CODEC_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

// What the order of the numbers is in terms of the strings.
enum class byte_order
{
    native, // a string is an integer of the machine's byte order, as the published wrappers read it
    bytes,  // strings are compared byte by byte from the first, as memcmp does: integers with the first byte on top
};

// Strings of one size, 1 to 8 bytes. Shorter ones than 8 are followed by zeros in memory: on top of the number or below
// it, as the order has it. As all have the same size, they keep their order.
class word_codec
{
public:
    word_codec(size_t size, byte_order order)
        : size_(size), swapped_(order == byte_order::bytes && little_endian)
    {
    }

    size_t size() const { return size_; }

    // Whether a string of 8 bytes and its number are the same in memory.
    bool is_identity() const { return size_ == sizeof(uint64_t) && !swapped_; }

    uint64_t decode(const char* string) const
    {
        uint64_t word = 0;
        if (size_ == sizeof(word)) // a size that the compiler knows is copied by one instruction
            memcpy(&word, string, sizeof(word));
        else
            memcpy(&word, string, size_);
        return swapped_ ? __builtin_bswap64(word) : word;
    }

    void encode(uint64_t word, char* string) const
    {
        word = swapped_ ? __builtin_bswap64(word) : word;
        if (size_ == sizeof(word))
            memcpy(string, &word, sizeof(word));
        else
            memcpy(string, &word, size_);
    }

private:
    static constexpr bool little_endian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

    size_t size_;
    bool swapped_; // whether the first byte of a string counts most and that of a number does not
};

#endif
