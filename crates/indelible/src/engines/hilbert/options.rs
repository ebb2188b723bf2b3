//! What can be chosen about a spatial index of this kind.

use crate::engines::{EngineOptions, OptionBytes, OptionInfo};
use crate::spatial::MAX_AXES;
use crate::Result;

/// Interim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HilbertOptions {}

impl HilbertOptions {
    pub(super) fn corners(&self) -> Option<[f64; 2 * MAX_AXES]> {
        None
    }
}

impl EngineOptions for HilbertOptions {
    const FORMAT: u32 = 1;
    const LIST: &'static [OptionInfo] = &[];
    fn set(&mut self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
    fn get(&self, _: &str) -> String {
        String::new()
    }
    fn encode(&self) -> Result<OptionBytes> {
        Ok(OptionBytes::default())
    }
    fn decode(_: u32, _: &OptionBytes) -> Result<Self> {
        Ok(Self {})
    }
    fn extremes() -> Vec<Self> {
        Vec::new()
    }
}
