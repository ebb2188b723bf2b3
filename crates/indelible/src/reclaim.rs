//! Epochs (stub).
