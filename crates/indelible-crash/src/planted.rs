//! Bugs to plant.
