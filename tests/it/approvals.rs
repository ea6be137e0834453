//! People are asked: from the question to what came of it.

mod flow;
