//! Values that are written and read in parts.

use super::BytesMap;
use crate::engines::{LongValue, ReadableValue};
use crate::pmem::geometry::sized;
use crate::{Error, Result};
use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom, Write};

/// Bytes of a value that a writer collects before it writes them to the pool: as many as are written with one fence. A multiple of the line size.
const PART_BYTES: usize = sized(64 << 10, 1 << 10);

/// What is done with long values in parts.
impl BytesMap {
    /// Begins to write a value of `length` bytes for `key` in parts. Nothing of it is seen before [`ValueWriter::commit`], which puts the whole value
    /// in one step.
    ///
    /// The length is given at the begin, since it says how large the value's block is: so no byte is written twice, a lack of space is an error here and
    /// not in the middle, and a value that is too long is refused at once. Who does not know the length collects the value first.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// use std::io::Write;
    /// let mut writer = map.value_writer("film", 300_000)?;
    /// for _ in 0..3 {
    ///     writer.write_all(&[7; 100_000])?;
    /// }
    /// assert_eq!(map.value_len("film")?, None);
    /// assert!(!writer.commit()?, "the key was not there before");
    /// assert_eq!(map.value_len("film")?, Some(300_000));
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_writer(&self, key: impl AsRef<[u8]>, length: u64) -> Result<ValueWriter> {
        let key = key.as_ref().to_vec();
        let value = self.index.new_value(&key, length)?;
        Ok(ValueWriter {
            map: self.clone(),
            key,
            length,
            value,
            written: 0,
            buffer: Vec::new(),
        })
    }

    /// A reader of the value of `key` as it is now, if the key is there: also if the value is replaced or removed while it is read.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// use std::io::{Read, Seek, SeekFrom};
    /// map.insert("film", vec![7; 100_000])?;
    /// let mut reader = map.value_reader("film")?.expect("the key is there");
    /// map.remove("film")?;
    /// let mut end = [0; 10];
    /// reader.seek(SeekFrom::End(-10))?;
    /// reader.read_exact(&mut end)?;
    /// assert_eq!(end, [7; 10]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let value = self.index.keep_value(key.as_ref())?;
        Ok(value.map(|value| ValueReader {
            map: self.clone(),
            value,
            at: 0,
        }))
    }
}

/// Writes the value of one key in parts: see [`BytesMap::value_writer`].
///
/// Each 64 KiB are written to the value's block in the pool, to which nothing leads before [`commit`](Self::commit). So neither a crash nor a writer that
/// is dropped leaves anything: the block is free again. [`flush`](Write::flush) does nothing, since what is not committed is not there.
///
/// Other writers of the key do not wait: of several, the value of the one that commits last stays. A writer is a handle to the map, which can be neither
/// closed nor dropped as long as the writer lives. It holds no lock and pins nothing; [`BytesMap::check`] and [`BytesMap::compact`] can run
/// meanwhile, and a compaction leaves its block where it is. It may move to another thread.
#[derive(Debug)]
#[must_use = "a value that is not committed is not there"]
pub struct ValueWriter {
    map: BytesMap,
    key: Vec<u8>,
    /// Bytes that the value is to have.
    length: u64,
    /// The block; none for a value so short that it lies in the leaf, which is collected in `buffer`.
    value: Option<LongValue>,
    /// Bytes in the block.
    written: u64,
    /// Bytes that come behind them.
    buffer: Vec<u8>,
}

impl ValueWriter {
    /// Bytes that have been written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Puts the value, in one step, as [`BytesMap::insert`] does, and returns whether the key was there before.
    ///
    /// # Errors
    ///
    /// [`Error::WrongLength`] unless as many bytes were written as announced, and those of [every write](BytesMap#errors). Nothing is changed then, and
    /// what was written is gone; after [`Error::LogFailed`] the value may be there until the pool is closed, as after every write.
    pub fn commit(mut self) -> Result<bool> {
        if self.written() != self.length {
            return Err(Error::WrongLength {
                announced: self.length,
                written: self.written(),
            });
        }
        if self.value.is_none() {
            return self.map.insert(&self.key, &self.buffer);
        }
        let last = (self.written, &self.buffer[..]);
        let value = &mut self.value;
        self.map.index.put_value(&self.key, value, last)
    }

    /// Writes a whole part to the block.
    fn write_part(&mut self, part: &[u8]) -> io::Result<()> {
        if let Some(value) = &self.value {
            (self.map.index)
                .write_part(value, self.written, part)
                .map_err(io::Error::other)?;
            self.written += part.len() as u64;
        }
        Ok(())
    }
}

impl Write for ValueWriter {
    /// Takes at most 64 KiB at once, as [`Write`] allows: use [`write_all`](Write::write_all). If there are more bytes than the value was announced with, it
    /// takes none and returns an error.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.length - self.written() {
            let message = format!("the value was announced with {} bytes", self.length);
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        if self.value.is_none() {
            self.buffer.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        if !self.buffer.is_empty() || bytes.len() < PART_BYTES {
            let taken = bytes.len().min(PART_BYTES - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..taken]);
            // The last part is written by the commit.
            if self.buffer.len() == PART_BYTES && self.written() < self.length {
                let mut part = std::mem::take(&mut self.buffer);
                let result = self.write_part(&part);
                // After an error the bytes have not been taken.
                part.truncate(if result.is_ok() {
                    0
                } else {
                    PART_BYTES - taken
                });
                self.buffer = part;
                result?;
            }
            return Ok(taken);
        }
        // Without a copy to the buffer.
        self.write_part(&bytes[..PART_BYTES])?;
        Ok(PART_BYTES)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ValueWriter {
    fn drop(&mut self) {
        if let Some(value) = &self.value {
            self.map.index.let_go(value, true);
        }
    }
}

/// Reads the value of one key in parts: see [`BytesMap::value_reader`].
///
/// The value stays as it was when the reader was opened, whatever others do to the key. What this costs is the value's block, which is not used again
/// before the reader is dropped, and which a compaction cannot move: nothing else waits, however long the reader lives. (The closure of
/// [`BytesMap::get_with`] holds up all memory that the process frees.) A short value is copied.
///
/// What is read would survive a crash already. A reader is a handle to the map, which can be neither closed nor dropped as long as the reader lives. It may
/// move to another thread. Through [`BufRead`] and [`as_slice`](Self::as_slice) the value is read where it lies, without a copy.
#[derive(Debug)]
pub struct ValueReader {
    map: BytesMap,
    value: ReadableValue,
    /// Where the next read begins; may lie behind the end.
    at: u64,
}

impl ValueReader {
    /// All bytes of the value, where they lie.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.value {
            ReadableValue::Short(value) => value,
            ReadableValue::Long(value) => self.map.index.kept_bytes(value),
        }
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.value {
            ReadableValue::Short(value) => value.len() as u64,
            ReadableValue::Long(value) => value.bytes,
        }
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl BufRead for ValueReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let from = self.at.min(self.len()) as usize;
        Ok(&self.as_slice()[from..])
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount as u64;
    }
}

impl Read for ValueReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl Seek for ValueReader {
    /// A place behind the end is allowed; nothing is read there.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let message = "a place before the begin of the value";
        self.at = place.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, message))?;
        Ok(self.at)
    }
}

impl Drop for ValueReader {
    fn drop(&mut self) {
        if let ReadableValue::Long(value) = &self.value {
            self.map.index.let_go(value, false);
        }
    }
}
