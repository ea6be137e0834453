//! The programs in `examples`, run to their ends: each starts a service of its own and checks what came.

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
