//! One open spatial index of any kind. A call costs one branch on the kind, as in [`any`](super::any).

use super::handle::{Handle, Upkeep};
use super::{Host, SpatialStat};
use crate::Result;
use crate::engines::{
    self, AnySpatialOptions, Engine, Nearest, Neighbour, Place, Spatial, SpatialKind,
    spatial_engines,
};
use crate::pool::Object;
use crate::spatial::{Geometry, Metric, Rect};
use std::sync::Arc;

macro_rules! any_spatial {
    ($($(#[$doc:meta])+ $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+) => {
        /// One open spatial index, of whatever kind.
        pub(crate) enum AnySpatial<G: Geometry> {
            $($variant(Arc<Host<engines::$folder::Index<G>>>),)+
        }

        impl<G: Geometry> Clone for AnySpatial<G> {
            fn clone(&self) -> Self {
                match self {
                    $(Self::$variant(host) => Self::$variant(Arc::clone(host)),)+
                }
            }
        }

        /// Does the work with the host inside, whatever its kind.
        macro_rules! each {
            ($any:expr, $host:ident => $work:expr) => {
                match $any {
                    $(Self::$variant($host) => $work,)+
                }
            };
        }

        impl<G: Geometry> Handle for AnySpatial<G> {
            type Kind = SpatialKind;

            fn format(place: &Place, options: &AnySpatialOptions) -> Result<()> {
                match options {
                    $(AnySpatialOptions::$variant(options) => {
                        <engines::$folder::Index<G> as Engine>::format(place, options)
                    })+
                }
            }

            fn open(place: Place, kind: SpatialKind) -> Result<Self> {
                Ok(match kind {
                    $(SpatialKind::$variant => Self::$variant(Host::open(place)?),)+
                })
            }

            fn from_object(kind: SpatialKind, object: Arc<Object>) -> Option<Self> {
                match kind {
                    $(SpatialKind::$variant => object.downcast().ok().map(Self::$variant),)+
                }
            }

            fn object(&self) -> Arc<Object> {
                match self {
                    $(Self::$variant(host) => Arc::<Host<engines::$folder::Index<G>>>::clone(host),)+
                }
            }

            fn upkeep(&self) -> &dyn Upkeep {
                each!(self, host => &**host)
            }

            fn kind(&self) -> SpatialKind {
                match self {
                    $(Self::$variant(_) => SpatialKind::$variant,)+
                }
            }
        }

        impl<G: Geometry> AnySpatial<G> {
            pub(crate) fn name(&self) -> String {
                each!(self, host => host.name())
            }

            /// The number of the catalog entry.
            pub(crate) fn slot(&self) -> usize {
                each!(self, host => host.slot())
            }

            #[inline]
            pub(crate) fn insert(&self, shape: &G, payload: u64) -> Result<()> {
                each!(self, host => host.insert_shape(shape, payload))
            }

            pub(crate) fn insert_batch(&self, records: Vec<(G, u64)>) -> Result<()> {
                each!(self, host => host.insert_shapes(records))
            }

            #[inline]
            pub(crate) fn remove(&self, shape: &G, payload: u64) -> Result<bool> {
                each!(self, host => host.remove_shape(shape, payload))
            }

            #[inline]
            pub(crate) fn relocate(&self, payload: u64, from: &G, to: &G) -> Result<bool> {
                each!(self, host => host.relocate(payload, from, to))
            }

            pub(crate) fn bulk_load(&self, records: Vec<(G, u64)>, fill: f64) -> Result<()> {
                each!(self, host => host.bulk_load_shapes(records, fill))
            }

            /// See [`Spatial::search`].
            #[inline]
            pub(crate) fn search(
                &self,
                windows: &[Rect],
                found: &mut Vec<(G, u64)>,
            ) -> Result<()> {
                each!(self, host => host.settled(host.reader().search(windows, found)))
            }

            /// See [`Spatial::search_many`].
            pub(crate) fn search_many(
                &self,
                searches: &[&[Rect]],
                found: &mut [Vec<(G, u64)>],
            ) -> Result<()> {
                each!(self, host => host.settled(host.reader().search_many(searches, found)))
            }

            /// See [`Spatial::nearest`].
            #[inline]
            pub(crate) fn nearest(
                &self,
                metric: &impl Metric,
                request: &mut Nearest<'_, G>,
                found: &mut Vec<Neighbour<G>>,
            ) -> Result<()> {
                each!(self, host => host.settled(host.reader().nearest(metric, request, found)))
            }

            pub(crate) fn bounds(&self) -> Result<Option<Rect>> {
                each!(self, host => host.settled(host.reader::<G>().bounds()))
            }

            pub(crate) fn leaves(&self) -> Result<Vec<(Rect, usize)>> {
                each!(self, host => host.settled(host.reader::<G>().leaves()))
            }

            pub(crate) fn expect_writable(&self) -> Result<()> {
                each!(self, host => host.expect_writable())
            }

            pub(crate) fn len(&self) -> Result<u64> {
                each!(self, host => host.len())
            }

            pub(crate) fn warm_up(&self) -> Result<()> {
                each!(self, host => host.warm_up())
            }

            pub(crate) fn release_memory(&self) -> u64 {
                each!(self, host => host.release_memory())
            }

            pub(crate) fn compact(&self) -> Result<()> {
                each!(self, host => {
                    host.expect_writable()?;
                    host.compact()
                })
            }

            pub(crate) fn check(&self) -> Result<Vec<String>> {
                each!(self, host => host.check())
            }

            pub(crate) fn stat(&self) -> Result<SpatialStat> {
                each!(self, host => host.stat(self.kind()))
            }
        }
    };
}
spatial_engines!(any_spatial);
