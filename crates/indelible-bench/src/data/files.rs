//! Keys from files.

use anyhow::{Context, Result, bail, ensure};
use indelible::Key;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::str::FromStr;

/// Opens a file to read.
///
/// # Errors
///
/// If it cannot be opened; the message has its path.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("open {}", path.display()))
}

/// The keys of a file in SOSD's binary format, in the order of the file, read as they are asked for.
pub struct Sosd {
    reader: BufReader<File>,
    left: u64,
    width: usize,
}

impl Sosd {
    /// Opens a file: a count of 8 bytes, then as many keys of 8 or of 4 bytes, little-endian.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or its length does not fit the count.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open(path)?;
        let length = file.metadata()?.len();
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut word = [0; 8];
        reader
            .read_exact(&mut word)
            .context("the file has no count")?;
        let count = u64::from_le_bytes(word);
        let bytes = |width: u64| count.checked_mul(width)?.checked_add(8);
        let Some(width) = [8, 4]
            .into_iter()
            .find(|&width| bytes(width) == Some(length))
        else {
            bail!("the file says that it has {count} keys, which is not so: it has {length} bytes");
        };
        Ok(Self {
            reader,
            left: count,
            width: width as usize,
        })
    }

    /// How many keys are left to read.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }
}

impl Iterator for Sosd {
    type Item = Result<u64>;

    fn next(&mut self) -> Option<Result<u64>> {
        self.left = self.left.checked_sub(1)?;
        let mut word = [0; 8];
        let read = self.reader.read_exact(&mut word[..self.width]);
        Some(read.map(|()| u64::from_le_bytes(word)).map_err(Into::into))
    }
}

/// The position of a column given by its name, or by its number from 1.
///
/// # Errors
///
/// If there is no such name and it is not a number, or if several columns have the name.
pub fn column(header: &csv::StringRecord, wanted: &str) -> Result<usize> {
    let mut named = (0..).zip(header).filter(|(_, name)| name.trim() == wanted);
    if let Some((position, _)) = named.next() {
        if named.next().is_some() {
            bail!("two columns have the name {wanted:?}; their numbers from 1 do as well");
        }
        return Ok(position);
    }
    match wanted.parse::<usize>() {
        Ok(number) if number > 0 => Ok(number - 1),
        _ if header.is_empty() => bail!(
            "there is no column {wanted:?}: without a header, columns have no names and are called by their numbers from 1"
        ),
        _ => bail!(
            "there is no column {wanted:?}; the file has {}",
            header.iter().collect::<Vec<_>>().join(", ")
        ),
    }
}

/// All keys of a SOSD file.
pub(super) fn sosd_keys(path: &Path) -> Result<Vec<u64>> {
    let file = Sosd::open(path)?;
    let mut keys = Vec::with_capacity(file.left() as usize);
    for key in file {
        keys.push(key?);
    }
    Ok(keys)
}

/// All keys of a column, as the narrowest type that fits them all. Starting over with the next type takes time where a
/// late row is the first that does not fit, but no memory.
pub(super) fn csv_keys(path: &Path, wanted: &str) -> Result<Vec<u64>> {
    typed_keys::<u64>(path, wanted)
        .or_else(|_| typed_keys::<i64>(path, wanted))
        .or_else(|_| typed_keys::<f64>(path, wanted))
}

fn typed_keys<K: Key + FromStr>(path: &Path, wanted: &str) -> Result<Vec<u64>> {
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(BufReader::with_capacity(1 << 20, open(path)?));
    let mut row = csv::StringRecord::new();
    ensure!(rows.read_record(&mut row)?, "the file is empty");
    // A number is no name, even if the first row has it: that may be a row of keys.
    let by_number = wanted.parse::<usize>().is_ok();
    let names = if by_number {
        csv::StringRecord::new()
    } else {
        row.clone()
    };
    let at = column(&names, wanted)?;
    let mut keys = Vec::new();
    let is_number = |field: &&str| field.trim().parse::<f64>().is_ok_and(f64::is_finite);
    if let Some(first) = row.get(at).filter(is_number) {
        keys.push(key_of::<K>(first).context("line 1")?);
    }
    while rows.read_record(&mut row)? {
        let line = row.position().map_or(0, csv::Position::line);
        let field = row
            .get(at)
            .with_context(|| format!("line {line} has no column {}", at + 1))?;
        keys.push(key_of::<K>(field).with_context(|| format!("line {line}"))?);
    }
    Ok(keys)
}

fn key_of<K: Key + FromStr>(field: &str) -> Result<u64> {
    let Ok(key) = field.trim().parse::<K>() else {
        bail!("{field:?} is not a number")
    };
    Ok(key.encode()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> tempfile::TempPath {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file.into_temp_path()
    }

    #[test]
    fn sosd_files_have_keys_of_eight_or_four_bytes() {
        let wide: Vec<u8> = [3_u64, 7, u64::MAX, 5]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert_eq!(sosd_keys(&file(&wide)).unwrap(), [7, u64::MAX, 5]);
        let mut narrow = 2_u64.to_le_bytes().to_vec();
        narrow.extend([1, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(sosd_keys(&file(&narrow)).unwrap(), [1, 0xffff_ffff]);
        assert_eq!(sosd_keys(&file(&[0; 8])).unwrap(), [0_u64; 0]);
    }

    #[test]
    fn a_sosd_file_whose_count_is_wrong_is_refused() {
        let forged = [u64::MAX, u64::MAX / 8 + 1, u64::MAX / 4 + 1, 3, 0];
        for count in forged {
            let mut bytes = count.to_le_bytes().to_vec();
            bytes.extend([0; 16]);
            let error = sosd_keys(&file(&bytes)).unwrap_err().to_string();
            assert!(error.contains("24 bytes"), "{error}");
        }
        assert!(sosd_keys(&file(b"short")).is_err());
        assert!(sosd_keys(Path::new("no such file")).is_err());
    }

    #[test]
    fn a_column_has_the_narrowest_type_that_fits() {
        let text = b"id,delta,degrees\n18446744073709551615,1,0.5\n0,-1,-1e3\n";
        let path = file(text);
        assert_eq!(csv_keys(&path, "id").unwrap(), [u64::MAX, 0]);
        let signed = [1_i64, -1].map(|key| key.encode().unwrap());
        assert_eq!(csv_keys(&path, "delta").unwrap(), signed);
        let decimals = [0.5_f64, -1000.0].map(|key| key.encode().unwrap());
        assert_eq!(csv_keys(&path, "degrees").unwrap(), decimals);
        assert_eq!(csv_keys(&path, "3").unwrap(), decimals);
    }

    #[test]
    fn a_file_without_names_keeps_its_first_row() {
        assert_eq!(csv_keys(&file(b"5,1\n6,2\n"), "1").unwrap(), [5, 6]);
        let signed = [-5_i64, 6].map(|key| key.encode().unwrap());
        assert_eq!(csv_keys(&file(b"-5\n6\n"), "1").unwrap(), signed);
    }

    #[test]
    fn columns_that_are_not_there_or_not_numbers_are_refused() {
        for (text, column, says) in [
            (&b"a,b\n1,x\n"[..], "b", "line 2"),
            (b"a,b\n1,NaN\n", "b", "line 2"),
            (b"a,b\n1,\n", "b", "line 2"),
            (b"a,b\n1,2\n3\n", "b", "found record with 1 fields"),
            (b"a,b\n1,2\n", "c", "the file has a, b"),
            (b"a,b\n1,2\n", "0", "no column"),
            (b"a,b\n1,2\n", "3", "has no column 3"),
            (b"", "1", "empty"),
        ] {
            let error = format!("{:#}", csv_keys(&file(text), column).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
