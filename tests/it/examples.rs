//! The programs in `examples`, run to their ends: each starts a service of its own and checks what came.

#[path = "../../examples/own_checks.rs"]
mod own_checks;
#[path = "../../examples/own_executor.rs"]
mod own_executor;
#[path = "../../examples/own_tool.rs"]
mod own_tool;

#[test]
fn example_of_an_executor_runs_to_its_end() {
    own_executor::main().unwrap();
}

#[test]
fn example_of_a_tool_runs_to_its_end() {
    own_tool::main().unwrap();
}

#[test]
fn example_of_checks_runs_to_its_end() {
    own_checks::main().unwrap();
}

/// The page shows lines of the example as they stand there.
#[test]
fn rust_of_the_readme_is_that_of_the_example_of_checks() {
    let page = include_str!("../../README.md");
    let (_, behind) = page.split_once("```rust\n").expect("a block of Rust");
    let (block, _) = behind.split_once("```").expect("the end of the block");
    let example: Vec<&str> = include_str!("../../examples/own_checks.rs").lines().map(str::trim).collect();
    for line in block.lines() {
        assert!(example.contains(&line), "examples/own_checks.rs has no `{line}`");
    }
}
