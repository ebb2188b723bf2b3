//! The instructions: cache-line write-back, store fence, non-temporal store.

use super::LINE;
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// How a line is written back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushInstruction {
    /// x86-64 `clwb`: writes back and may keep the line.
    Clwb,
    /// x86-64 `clflushopt`: writes back and evicts; unordered.
    ClflushOpt,
    /// x86-64 `clflush`: writes back and evicts; ordered. Every x86-64 CPU has it.
    Clflush,
    /// AArch64 `dc cvap`: cleans to the point of persistence.
    DcCvap,
    /// No known instruction: power-loss safety cannot be offered here.
    None,
}

impl FlushInstruction {
    /// The best instruction of this CPU.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            // CPUID leaf 7: EBX bit 24 is clwb, bit 23 is clflushopt. Asked once: in a virtual machine it takes long.
            static EBX: OnceLock<u32> = OnceLock::new();
            let ebx = *EBX.get_or_init(|| std::arch::x86_64::__cpuid_count(7, 0).ebx);
            if ebx & (1 << 24) != 0 {
                Self::Clwb
            } else if ebx & (1 << 23) != 0 {
                Self::ClflushOpt
            } else {
                Self::Clflush
            }
        }
        #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
        {
            // HWCAP_DCPOP: the kernel lets user space clean to the point of persistence.
            const HWCAP_DCPOP: usize = 1 << 16;
            if rustix::param::linux_hwcap().0 & HWCAP_DCPOP != 0 {
                Self::DcCvap
            } else {
                Self::None
            }
        }
        #[cfg(not(any(
            target_arch = "x86_64",
            all(target_arch = "aarch64", target_os = "linux")
        )))]
        {
            Self::None
        }
    }

    /// Writes back every line that starts in `lines` (line-aligned addresses).
    #[inline(always)]
    pub(super) fn flush(self, lines: Range<usize>) {
        for line in lines.step_by(LINE) {
            // SAFETY: the address lies in a line of a live reference (see `Pm::flush`), and writing a line back
            // changes no value; `self` was detected on this CPU, so the instruction exists.
            unsafe { self.flush_line(line) }
        }
    }

    /// # Safety
    ///
    /// `line` is an address inside mapped memory, and the CPU has the instruction.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn flush_line(self, line: usize) {
        use std::arch::asm;
        // SAFETY: by the contract above. The asm blocks are allowed to touch memory (no `nomem`), so the compiler
        // keeps earlier stores before them.
        unsafe {
            match self {
                Self::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                Self::ClflushOpt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                Self::Clflush => {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                Self::DcCvap | Self::None => {}
            }
        }
    }

    /// # Safety
    ///
    /// `line` is an address inside mapped memory, and the CPU has the instruction.
    #[inline(always)]
    #[cfg(target_arch = "aarch64")]
    unsafe fn flush_line(self, line: usize) {
        if self == Self::DcCvap {
            // SAFETY: by the contract above. `dc cvap` is spelled as its system instruction for older assemblers.
            unsafe {
                std::arch::asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags))
            }
        }
    }

    #[inline(always)]
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    unsafe fn flush_line(self, _line: usize) {}
}

/// The line-aligned addresses that cover `size` bytes from `start`.
#[inline(always)]
pub(super) fn lines_of(start: usize, size: usize) -> Range<usize> {
    (start & !(LINE - 1))..((start + size + LINE - 1) & !(LINE - 1))
}

/// Orders flushes and non-temporal stores before everything after.
#[inline(always)]
pub(super) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    {
        // Not the intrinsic: an asm block without `nomem` also stops the compiler from moving stores across it.
        // SAFETY: sfence has no operands and exists on every x86-64 CPU.
        unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) }
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: a barrier has no operands.
        unsafe { std::arch::asm!("dsb sy", options(nostack, preserves_flags)) }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Orders non-temporal stores before all later stores, as other threads see them. (Ordinary stores are in order on CPUs that have non-temporal ones.)
#[inline(always)]
pub(super) fn end_stream() {
    #[cfg(target_arch = "x86_64")]
    store_fence();
}

/// Stores one word past the caches where the CPU can, else plainly. [`end_stream`] ends such stores.
#[cfg(not(feature = "trace"))]
#[inline(always)]
pub(super) fn stream(cell: &super::Cell, value: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the cell is an aligned, writable word; `movnti` is part of SSE2, which every x86-64 CPU has.
        unsafe {
            std::arch::asm!("movnti [{}], {}", in(reg) cell.as_ptr(), in(reg) value,
                options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        cell.set_relaxed(value);
        FlushInstruction::detect().flush(lines_of(cell.as_ptr() as usize, 8));
    }
}
