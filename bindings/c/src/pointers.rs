//! From what C passes to what Rust trusts.

use crate::status::Failure;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

fn not_null<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    NonNull::new(pointer).ok_or_else(|| Failure::invalid(format!("`{name}` is null")))
}

/// What a handle points to.
///
/// # Safety
///
/// `handle` is null, or came from an open function and is not closed before the reference has been used last.
pub(crate) unsafe fn shared<'a, T: Sync>(handle: *const T, name: &str) -> Result<&'a T, Failure> {
    let handle = not_null(handle.cast_mut(), name)?;
    // SAFETY: not null, so by contract a live box; nobody has a mutable reference to what a handle points to.
    Ok(unsafe { handle.as_ref() })
}

/// The place where a result goes. No reference to it, since a caller may give the same place for two results that do not matter.
pub(crate) struct Place<T>(NonNull<T>);

impl<T: Copy> Place<T> {
    pub(crate) fn write(&self, result: T) {
        // SAFETY: valid for a write, says the caller of `place`; there is nothing to drop.
        unsafe { self.0.write(result) }
    }
}

/// The place where a result goes.
///
/// # Safety
///
/// `place` is null or valid for a write of `T` by this thread alone, until the place has been used last.
pub(crate) unsafe fn place<T>(place: *mut T, name: &str) -> Result<Place<T>, Failure> {
    Ok(Place(not_null(place, name)?))
}

/// The box that a handle stands for, back from the caller.
///
/// # Safety
///
/// `handle` is null, or came from an open function and nobody uses it any more.
pub(crate) unsafe fn taken<T>(handle: *mut T, name: &str) -> Result<Box<T>, Failure> {
    let handle = not_null(handle, name)?;
    // SAFETY: not null, so by contract it came from `Box::into_raw` and is given back once.
    Ok(unsafe { Box::from_raw(handle.as_ptr()) })
}

/// A string.
///
/// # Safety
///
/// `text` is null, or ends with a zero byte and does not change before it has been used last.
pub(crate) unsafe fn string<'a>(text: *const c_char, name: &str) -> Result<&'a CStr, Failure> {
    let text = not_null(text.cast_mut(), name)?;
    // SAFETY: not null, so by contract a string that ends.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) })
}

/// A string that must be UTF-8.
pub(crate) fn utf8<'a>(text: &'a CStr, name: &str) -> Result<&'a str, Failure> {
    text.to_str()
        .map_err(|_| Failure::invalid(format!("`{name}` is not UTF-8")))
}

/// The text of options: null means none.
///
/// # Safety
///
/// As for [`string`].
pub(crate) unsafe fn options_text<'a>(options: *const c_char) -> Result<&'a str, Failure> {
    if options.is_null() {
        return Ok("");
    }
    // SAFETY: the caller's, word for word.
    utf8(unsafe { string(options, "options")? }, "options")
}

/// A copy of a plain value.
///
/// # Safety
///
/// `value` is null, or can be read and does not change meanwhile.
pub(crate) unsafe fn value<T: Copy>(value: *const T, name: &str) -> Result<T, Failure> {
    let value = not_null(value.cast_mut(), name)?;
    // SAFETY: not null, so by contract it can be read.
    Ok(unsafe { value.read() })
}

/// Elements to read. Where there are none, `first` may be null: the empty arrays of other languages have no address.
///
/// # Safety
///
/// `first` is null, or `count` elements from there on can be read and do not change before they have been used last.
pub(crate) unsafe fn elements<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let first = not_null(first.cast_mut(), name)?;
    check_length::<T>(count, name)?;
    // SAFETY: not null, so by contract valid; no longer than any object can be.
    Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), count) })
}

/// Room for elements. Where there is none, `first` may be null, as for [`elements`].
///
/// # Safety
///
/// `first` is null, or `count` elements from there on may be written by this thread alone until the slice has been used
/// last.
pub(crate) unsafe fn room<'a, T>(
    first: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    let first = not_null(first, name)?;
    check_length::<T>(count, name)?;
    // SAFETY: not null, so by contract valid; what was there before is not looked at; no longer than any object can be.
    Ok(unsafe { std::slice::from_raw_parts_mut(first.as_ptr().cast(), count) })
}

fn check_length<T>(count: usize, name: &str) -> Result<(), Failure> {
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::invalid(format!(
            "`{name}` cannot have {count} elements"
        )));
    }
    Ok(())
}
