//! Bugs to plant: what an author of such structures gets wrong, for the crash checker to find.
//!
//! Each folder of the library lists its own bugs with [`bugs!`]. With the `trace` feature one of them can be switched on for the
//! current thread of the system ([`plant`]). Without that feature [`planted`] is the constant `false`, and the compiler removes
//! the question.

/// A bug in the order of things. (Missing flushes and fences are planted by the checker in what it recorded.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug {
    /// The folder that has the bug, and its name: `lbtree.SplitOverwrites`.
    pub name: &'static str,
    /// What is wrong, in words.
    pub description: &'static str,
}

/// A folder's own list of bugs, made by [`bugs!`].
pub(crate) trait Plantable: Copy {
    /// What the checker plants.
    #[cfg_attr(not(feature = "trace"), allow(dead_code))]
    fn bug(self) -> &'static Bug;
}

/// Declares `enum Bug`, the bugs of one folder, and `Bug::ALL`, what the checker knows of them.
macro_rules! bugs {
    ($folder:literal: $($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The bugs that can be planted in this folder.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(feature = "trace"), allow(dead_code))]
        pub(crate) enum Bug {
            $($(#[doc = $doc])+ $name,)+
        }

        #[cfg_attr(not(feature = "trace"), allow(dead_code))]
        impl Bug {
            /// All of them, in the order of the variants.
            pub(crate) const ALL: &'static [crate::pmem::planted::Bug] = &[$(crate::pmem::planted::Bug {
                name: concat!($folder, ".", stringify!($name)),
                description: concat!($($doc,)+).trim_ascii(),
            },)+];
        }

        impl crate::pmem::planted::Plantable for Bug {
            #[inline(always)]
            fn bug(self) -> &'static crate::pmem::planted::Bug {
                &Self::ALL[self as usize]
            }
        }
    };
}
pub(crate) use bugs;

#[cfg(feature = "trace")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<&'static Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for this thread of the system, or takes it away.
#[cfg(feature = "trace")]
pub fn plant(bug: Option<&'static Bug>) {
    PLANTED.set(bug);
}

/// Whether `bug` is planted.
#[inline(always)]
pub(crate) fn planted(bug: impl Plantable) -> bool {
    #[cfg(feature = "trace")]
    {
        PLANTED
            .get()
            .is_some_and(|planted| planted.name == bug.bug().name)
    }
    #[cfg(not(feature = "trace"))]
    {
        let _ = bug;
        false
    }
}
