//! The programs in `examples`, run to their ends: each starts a service of its own and checks what came.

#[path = "../../examples/email_pipeline.rs"]
mod email_pipeline;
#[path = "../../examples/own_channel.rs"]
mod own_channel;
#[path = "../../examples/own_checks.rs"]
mod own_checks;
#[path = "../../examples/own_executor.rs"]
mod own_executor;
#[path = "../../examples/own_model.rs"]
mod own_model;
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

#[test]
fn example_of_a_mail_pipeline_runs_to_its_end() {
    email_pipeline::main().unwrap();
}

#[test]
fn example_of_a_channel_and_a_poll_runs_to_its_end() {
    own_channel::main().unwrap();
}

#[test]
fn example_of_a_model_and_calls_in_process_runs_to_its_end() {
    own_model::main().unwrap();
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
