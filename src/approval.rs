//! Which acts a person has to agree to, decided purely: nothing here asks anybody, stores or sends.

pub mod matrix;
