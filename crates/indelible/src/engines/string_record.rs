//! A record of a node of byte strings: its lengths, its key and its value.
//!
//! ```text
//! +0  lengths: bits 0..11 bytes of the key part, bits 12..23 bytes of the value part, bit 24 the key is a blob, bit 25 the value is a blob, bit 31 one
//! +4  key part
//!     value part, which ends where the record ends, at a multiple of 8 bytes
//! ```
//!
//! What the parts of a blob hold, which lies elsewhere in the pool, is the engine's matter. A record begins at a multiple of 8 bytes.

/// Bytes in front of the key part of a record.
pub(crate) const LENGTHS_BYTES: usize = 4;

/// The lengths of a record, in its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths(u32);

impl Lengths {
    const MARK: u32 = 1 << 31;
    const KEY_IS_BLOB: u32 = 1 << 24;
    const VALUE_IS_BLOB: u32 = 1 << 25;

    pub(crate) fn new(key: usize, key_is_blob: bool, value: usize, value_is_blob: bool) -> Self {
        debug_assert!(key < 1 << 12 && value < 1 << 12);
        let key_flag = if key_is_blob { Self::KEY_IS_BLOB } else { 0 };
        let value_flag = if value_is_blob {
            Self::VALUE_IS_BLOB
        } else {
            0
        };
        Self(Self::MARK | key_flag | value_flag | key as u32 | (value as u32) << 12)
    }

    /// The lengths at the begin of a record's first word.
    #[inline(always)]
    pub(crate) fn of_word(word: u64) -> Self {
        let [a, b, c, d, ..] = word.to_ne_bytes();
        Self::of_bytes([a, b, c, d])
    }

    #[inline(always)]
    pub(crate) fn of_bytes(bytes: [u8; LENGTHS_BYTES]) -> Self {
        Self(u32::from_ne_bytes(bytes))
    }

    pub(crate) fn to_bytes(self) -> [u8; LENGTHS_BYTES] {
        self.0.to_ne_bytes()
    }

    pub(crate) fn is_marked(self) -> bool {
        self.0 & Self::MARK != 0
    }

    #[inline(always)]
    pub(crate) fn key_is_blob(self) -> bool {
        self.0 & Self::KEY_IS_BLOB != 0
    }

    #[inline(always)]
    pub(crate) fn value_is_blob(self) -> bool {
        self.0 & Self::VALUE_IS_BLOB != 0
    }

    /// Whether it is that of a record of which neither the key nor the value is a blob.
    #[inline(always)]
    pub(crate) fn is_short(self) -> bool {
        self.0 & (Self::MARK | Self::KEY_IS_BLOB | Self::VALUE_IS_BLOB) == Self::MARK
    }

    /// Bytes of the key part.
    #[inline(always)]
    pub(crate) fn key(self) -> usize {
        (self.0 & 0xfff) as usize
    }

    /// Bytes of the value part.
    #[inline(always)]
    pub(crate) fn value(self) -> usize {
        (self.0 >> 12 & 0xfff) as usize
    }

    /// Words of the record.
    #[inline(always)]
    pub(crate) fn words(self) -> usize {
        record_words(self.key(), self.value())
    }
}

/// Words of a record with parts of so many bytes.
#[inline(always)]
pub(crate) const fn record_words(key: usize, value: usize) -> usize {
    (LENGTHS_BYTES + key + value).div_ceil(8)
}

/// Bytes of a copy of a node, or of others: where they begin, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) from: usize,
    pub(crate) bytes: usize,
}

impl Part {
    #[inline(always)]
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.from..][..self.bytes]
    }
}

/// The parts of a record in a copy of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) key: Part,
    pub(crate) value: Part,
}

impl Parts {
    /// The lengths and the parts of the record at a place of a copy, in words, and where the record ends, which need not be in the node; none if the copy has no
    /// bytes there.
    #[inline(always)]
    pub(crate) fn at(copy: &[u8], place: u8) -> Option<(Lengths, Self, usize)> {
        let at = 8 * usize::from(place);
        let lengths = Lengths::of_bytes(*copy.get(at..)?.first_chunk()?);
        let (from, end) = (at + LENGTHS_BYTES, at + 8 * lengths.words());
        let bytes = lengths.value();
        let parts = Self {
            key: Part {
                from,
                bytes: lengths.key(),
            },
            value: Part {
                from: end - bytes,
                bytes,
            },
        };
        Some((lengths, parts, end))
    }
}
