//! The bounds of `docs/limits.md`, and the test that stands at each and one beyond it.

use std::collections::BTreeSet;
use std::path::Path;

use super::limits::{constant, rows, thousands};
use super::source::Source;

/// The test of a bound, at the number and one beyond it, or why there is none.
enum BoundTest {
    By(&'static str),
    Not(&'static str),
}
use BoundTest::{By, Not};

/// Of one that only says how much is done at once.
const IN_TURNS: BoundTest = Not("nothing is refused: what is beyond it comes with the next turn");

/// Of an answer that is far shorter in fact.
const OF_PROVIDERS: BoundTest = Not("a longer answer is none, as any that can't be read, which has its tests");

/// Every constant that the page names.
const TESTED: &[(&str, BoundTest)] = &[
    (
        "src/http/ui/frame/login.rs: FORM_BYTES",
        By("form_that_signs_in_is_read_at_its_longest_and_refused_one_byte_beyond_it"),
    ),
    ("src/http/ui/frame/form.rs: MOST_FIELDS", By("form_is_taken_with_its_most_fields_and_refused_with_one_more")),
    ("src/http/ui/work/run/cut.rs: SHOWN_BYTES", By("text_is_whole_at_its_bound_and_cut_between_characters_beyond_it")),
    ("src/http/ui/work/run/said.rs: TEXT_BYTES", By("long_texts_are_cut_and_lead_to_the_whole")),
    ("src/http/ui/work/run/raw.rs: WHOLE_BYTES", By("text_is_plain_bounded_and_shows_hidden_characters")),
    ("src/http/ui/work/run/export.rs: EXPORT_ENTRIES", By("long_transcript_is_shown_and_exported_in_parts")),
    (
        "src/http/ui/work/run/export.rs: EXPORT_BYTES",
        Not("an export that ends early says so as one of many entries does"),
    ),
    (
        "src/ports/channel/templates/markup/output.rs: MARKUP_BYTES",
        By("markup_is_whole_at_its_bound_and_cut_one_beyond_it"),
    ),
    (
        "src/ports/channel/templates/markup/output.rs: NESTING",
        By("parts_open_down_to_the_deepest_and_stand_in_it_beyond"),
    ),
    ("src/ports/channel/templates/markup/table.rs: COLUMNS", By("table_of_many_columns_shows_the_first")),
    ("src/domain/credential/draft/fit.rs: POINTER_BYTES", By("pointers_and_templates_are_bounded_in_length_and_parts")),
    ("src/domain/credential/draft/fit.rs: POINTER_PARTS", By("pointers_and_templates_are_bounded_in_length_and_parts")),
    (
        "src/domain/credential/draft/fit.rs: TEMPLATE_PLACES",
        By("pointers_and_templates_are_bounded_in_length_and_parts"),
    ),
    ("src/ports/egress/rules.rs: URL_BYTES", By("url_is_taken_at_its_longest_and_refused_one_beyond_it")),
    (
        "src/engine/events/matcher/backlog.rs: AT_MOST",
        By("whole_batches_are_read_below_the_bound_and_nothing_beyond_twice_as_many"),
    ),
    (
        "src/engine/events/matcher/backlog.rs: IN_ALL",
        By("whole_batches_are_read_below_the_bound_and_nothing_beyond_twice_as_many"),
    ),
    ("src/engine/events/matcher/backlog.rs: PER_TENANT", By("tenant_with_many_waiting_is_full_and_another_is_not")),
    (
        "src/engine/events/matcher/backlog.rs: TENANT_BYTES",
        By("tenant_whose_events_have_many_bytes_is_full_at_the_bound_and_not_one_byte_below_it"),
    ),
    (
        "src/engine/events/matcher/backlog.rs: BYTES_IN_ALL",
        By("tenants_that_have_none_are_read_beside_many_bytes_and_nothing_beyond_the_most"),
    ),
    (
        "src/engine/events/matcher/backlog.rs: MOST_BYTES",
        By("tenants_that_have_none_are_read_beside_many_bytes_and_nothing_beyond_the_most"),
    ),
    (
        "src/engine/events/matcher/backlog.rs: JUDGED_BYTES",
        By("long_events_are_judged_up_to_their_bytes_and_short_ones_beside_them"),
    ),
    ("src/engine/events/matcher/work.rs: HOPELESS_BYTES", IN_TURNS),
    ("src/store/events.rs: LEASED_BYTES", IN_TURNS),
    ("src/ports/bus/redis/reading.rs: READ_BYTES", IN_TURNS),
    ("src/ports/bus/redis/reading.rs: AT_ONCE", IN_TURNS),
    (
        "src/ports/skill/document.rs: INSTRUCTIONS",
        By("instructions_are_taken_at_their_longest_and_cut_one_character_beyond_it"),
    ),
    ("src/domain/run/delegation.rs: MOST_CALLS", By("run_calls_as_many_agents_as_it_may_and_none_beyond")),
    (
        "src/agent/configured/fields.rs: MOST_FIELDS",
        By("fields_and_their_texts_are_taken_at_their_most_and_refused_one_beyond_it"),
    ),
    (
        "src/agent/configured/agent_field.rs: EXPLANATION",
        By("fields_and_their_texts_are_taken_at_their_most_and_refused_one_beyond_it"),
    ),
    ("src/domain/memory.rs: FACT_LENGTH", By("text_of_a_fact_is_one_line_and_is_taken_up_to_its_length")),
    ("src/domain/memory.rs: COLLECTION_LENGTH", By("collection_is_words_with_slashes_up_to_its_length")),
    ("src/domain/memory.rs: MESSAGE_READ", By("message_is_searched_by_the_beginnings_of_its_longest_words")),
    ("src/domain/memory.rs: LONGEST_OWN", By("message_is_its_writer_s_own_up_to_a_line_break_a_colon_or_its_length")),
    ("src/domain/memory.rs: MOST_FACTS", By("facts_of_a_tenant_and_versions_of_a_fact_are_bounded")),
    ("src/domain/memory.rs: MOST_FROM_OUTSIDE", By("facts_of_a_tenant_and_versions_of_a_fact_are_bounded")),
    ("src/domain/memory.rs: MOST_VERSIONS", By("facts_of_a_tenant_and_versions_of_a_fact_are_bounded")),
    ("src/domain/memory/recall.rs: MOST_RECALLED", By("run_is_told_as_much_as_fits")),
    (
        "src/engine/scheduling/start_ahead.rs: MOST_STARTED",
        By("as_many_are_started_ahead_as_slots_take_up_in_time_and_no_more_than_the_most"),
    ),
    ("src/http/api/conversations/responses.rs: MOST_MESSAGES", By("message_is_made_of_texts_of_the_user_alone")),
    ("src/http/server/unread_body.rs: SHORT_BYTES", By("rest_of_a_body_is_read_up_to_its_bound_and_no_further")),
    ("src/http/server/unread_body.rs: BEHIND_BYTES", By("rest_of_a_body_is_read_up_to_its_bound_and_no_further")),
    (
        "src/agent/prompt/extraction.rs: LONGEST_ANSWER",
        By("answer_is_read_with_or_without_fences_and_what_does_not_fit_is_left_out"),
    ),
    (
        "src/agent/prompt/extraction.rs: MOST_PARTS",
        By("material_is_what_the_person_has_said_in_the_run_and_nothing_else"),
    ),
    (
        "src/store/memory/extractions.rs: MOST_QUEUED",
        By("extractions_of_a_tenant_are_bounded_and_forgotten_when_nobody_works_them_off"),
    ),
    (
        "src/agent/prompt/extraction.rs: MOST_EXTRACTED",
        By("answer_is_read_with_or_without_fences_and_what_does_not_fit_is_left_out"),
    ),
    ("src/engine/maintenance/extractor.rs: AT_ONCE", IN_TURNS),
    (
        "src/ports/llm/openai/embedding.rs: MOST_DIMENSIONS",
        By("vectors_are_compared_by_their_directions_within_their_space"),
    ),
    ("src/ports/llm/openai/embedding.rs: TEXTS_AT_ONCE", IN_TURNS),
    ("src/executor/host/nearest.rs: SEARCHES", IN_TURNS),
    ("src/store/memory/vectors.rs: VECTORS_AT_ONCE", IN_TURNS),
    ("src/store/memory/vectors.rs: EMBEDDED_AT_ONCE", IN_TURNS),
    (
        "src/executor/host/known_vectors.rs: KNOWN_BYTES_OF_ONE",
        By("vectors_of_the_tenant_that_was_searched_longest_ago_are_forgotten_first"),
    ),
    (
        "src/executor/host/known_vectors.rs: KNOWN_BYTES",
        By("vectors_of_the_tenant_that_was_searched_longest_ago_are_forgotten_first"),
    ),
    (
        "src/executor/host/text_cache.rs: KEPT_BYTES_OF_ONE",
        By("texts_of_the_tenant_that_came_longest_ago_are_forgotten_first_and_of_one_its_own"),
    ),
    (
        "src/executor/host/text_cache.rs: KEPT_BYTES",
        By("texts_of_the_tenant_that_came_longest_ago_are_forgotten_first_and_of_one_its_own"),
    ),
    ("src/domain/memory/recall.rs: RECALLED_CHARS", By("run_is_told_as_much_as_fits")),
    (
        "src/agent/configured/agent_tool.rs: MOST_ARGUMENTS",
        By("instruction_and_arguments_are_taken_at_their_longest_and_refused_one_beyond_it"),
    ),
    (
        "src/agent/configured/agent_field.rs: LONGEST_TEXT",
        By("instruction_and_arguments_are_taken_at_their_longest_and_refused_one_beyond_it"),
    ),
    (
        "src/ports/skill/folder.rs: LONGEST",
        By("document_is_read_at_its_longest_and_refused_one_byte_beyond_it_and_where_it_is_no_file"),
    ),
    (
        "src/ports/skill/document.rs: FRONTMATTER",
        By("properties_are_kept_at_their_longest_and_name_and_description_one_byte_beyond_it"),
    ),
    ("src/ports/skill/folder.rs: MOST_SKILLS", By("files_and_skills_are_found_up_to_their_most")),
    ("src/ports/skill/folder.rs: MOST_FILES", By("files_and_skills_are_found_up_to_their_most")),
    ("src/domain/run/delegation.rs: MOST_DEEP", By("agents_call_each_other_at_most_three_deep")),
    (
        "src/agent/context/active_skills.rs: MOST_ACTIVE",
        By("skills_use_each_other_in_no_circle_and_no_more_than_three_at_once"),
    ),
    ("src/domain/conversation.rs: MESSAGE_LENGTH", By("message_is_taken_at_its_longest_and_refused_one_beyond_it")),
    ("src/domain/conversation.rs: REMEMBERED", By("of_many_and_long_runs_the_newest_are_told_within_the_bounds")),
    ("src/domain/conversation.rs: REMEMBERED_TEXT", By("of_many_and_long_runs_the_newest_are_told_within_the_bounds")),
    (
        "src/domain/conversation.rs: REMEMBERED_IN_ALL",
        By("of_many_and_long_runs_the_newest_are_told_within_the_bounds"),
    ),
    ("src/engine/events/matcher/slice.rs: WRITE", By("write_is_bounded_and_a_quiet_tenant_is_in_the_first")),
    ("src/engine/events/matcher/slice.rs: WRITE_BY_RULES", IN_TURNS),
    ("src/engine/events/windows.rs: JUDGED", IN_TURNS),
    ("src/engine/events/windows.rs: RELEASED_EVENTS", IN_TURNS),
    ("src/engine/events/windows.rs: RELEASED_TASKS", IN_TURNS),
    ("src/store/events/closing.rs: RELEASED_BYTES", By("held_events_are_read_up_to_their_bytes_and_in_their_order")),
    ("src/engine/events/windows.rs: BATCH", IN_TURNS),
    (
        "src/store/events/due_windows.rs: CLOSED_BYTES",
        By("windows_that_close_together_are_bounded_in_bytes_and_tenants_without_room_are_next"),
    ),
    ("src/domain/event.rs: ATTRIBUTE_LENGTH", By("attributes_are_taken_at_their_longest_and_refused_one_beyond_it")),
    ("src/domain/event.rs: EVENT_BYTES", By("event_is_taken_at_its_largest_and_refused_one_byte_beyond_it")),
    (
        "src/executor/pipeline/steps/for_each.rs: ITEMS",
        By("items_and_values_are_taken_at_their_bounds_and_fail_the_step_one_beyond_them"),
    ),
    (
        "src/executor/pipeline/ledger.rs: VALUE_BYTES",
        By("items_and_values_are_taken_at_their_bounds_and_fail_the_step_one_beyond_them"),
    ),
    ("src/agent/checkpoint.rs: DEFERRED_BYTES", By("results_that_are_large_do_not_wait")),
    ("src/http/streaming/run/position.rs: MOST_AHEAD", By("events_far_ahead_of_the_transcript_wait_for_it")),
    ("src/domain/approval/stored_override.rs: MOST_OVERRIDES", By("overrides_of_a_tenant_are_bounded")),
    ("src/store/approvals/suspended.rs: MOST_PAUSED_DAYS", By("paused_run_is_resumed_by_itself_after_thirty_days")),
    (
        "src/ports/bus/outbox.rs: BATCH",
        By("kept_event_of_a_quiet_tenant_is_forwarded_at_once_however_many_of_another_wait"),
    ),
    (
        "src/store/events/outbox.rs: FORWARDED_BYTES",
        By("events_are_forwarded_up_to_their_bytes_the_first_of_each_tenant_before_the_second_of_any"),
    ),
    ("src/store/approvals/suspended.rs: MOST_PAUSES", By("run_is_paused_a_bounded_number_of_times_while_it_waits")),
    ("src/store/tasks.rs: SCANNED_TASKS", By("tasks_are_looked_for_among_the_newest_and_the_list_goes_on_behind_them")),
    ("src/store/runs/pages.rs: SCANNED", By("page_by_a_rare_state_goes_on_behind_the_rows_that_it_has_read")),
    (
        "src/http/api/runs.rs: LONGEST_SEARCH",
        By("beginning_of_a_run_is_taken_at_its_longest_and_refused_one_beyond_it"),
    ),
    (
        "src/store/runs/pages/prefix.rs: KEYS",
        By("runs_are_looked_up_at_the_most_keys_tasks_and_tenants_and_found_among_the_newest_beyond"),
    ),
    (
        "src/store/runs/pages/prefix.rs: TASKS",
        By("runs_are_looked_up_at_the_most_keys_tasks_and_tenants_and_found_among_the_newest_beyond"),
    ),
    (
        "src/store/runs/pages/prefix.rs: SEARCHED_TENANTS",
        By("runs_are_looked_up_at_the_most_keys_tasks_and_tenants_and_found_among_the_newest_beyond"),
    ),
    ("src/http/ui/work/runs/bulk.rs: MOST", By("as_many_runs_are_taken_at_once_as_are_shown_and_none_more")),
    ("src/store/ops/depths.rs: COUNTED_TO", By("tasks_are_counted_up_to_a_bound")),
    (
        "src/executor/pipeline/scope.rs: RESULTS_BYTES",
        By("values_of_all_steps_are_taken_up_to_their_bytes_together_and_fail_the_step_one_beyond_them"),
    ),
    ("src/executor/pipeline/spec.rs: STEPS", By("steps_of_a_pipeline_are_fifty_at_most")),
    (
        "src/executor/pipeline/spec.rs: TEMPLATES",
        By("texts_of_a_pipeline_that_insert_something_are_a_thousand_at_most"),
    ),
    (
        "src/domain/task/credentials.rs: MOST_NAMED",
        By("task_names_as_many_credentials_and_tools_as_it_may_and_no_more"),
    ),
    ("src/base/expr/pattern.rs: TOGETHER_BYTES", By("patterns_of_an_expression_are_bounded_together")),
    (
        "src/base/expr/kept.rs: KEPT_BYTES",
        By("expressions_are_kept_up_to_their_bytes_and_of_a_tenant_with_many_no_more_than_its_part"),
    ),
    (
        "src/base/expr/kept.rs: KEPT_BYTES_OF_ONE",
        By("expressions_are_kept_up_to_their_bytes_and_of_a_tenant_with_many_no_more_than_its_part"),
    ),
    (
        "src/base/expr/pattern.rs: KEPT_PATTERNS",
        By("compiled_patterns_are_kept_up_to_their_number_and_the_oldest_is_compiled_again"),
    ),
    ("src/executor/pipeline/steps/http.rs: HEADERS", By("headers_of_an_http_step_are_thirty_at_most")),
    (
        "src/executor/webhook/settings.rs: HEADERS",
        By("headers_of_a_webhook_are_taken_up_to_their_number_and_refused_one_beyond_it"),
    ),
    (
        "src/base/template/meter.rs: SHARED_STEPS",
        By("renderings_share_their_steps_up_to_the_bound_and_not_one_beyond_it"),
    ),
    (
        "src/domain/trigger/condition/form.rs: KEY_BYTES",
        By("key_in_redis_is_taken_up_to_its_length_and_refused_one_byte_beyond_it"),
    ),
    (
        "src/domain/credential/draft/hosts.rs: HOSTS",
        By("hosts_and_scopes_are_taken_up_to_their_number_and_refused_one_beyond_it"),
    ),
    (
        "src/domain/credential/draft.rs: SCOPES",
        By("hosts_and_scopes_are_taken_up_to_their_number_and_refused_one_beyond_it"),
    ),
    (
        "src/http/api/events/form.rs: MOST_EVENTS",
        By("events_of_a_request_are_taken_up_to_their_number_and_refused_one_beyond_it"),
    ),
    (
        "src/http/api/tasks.rs: BACKFILL",
        By("instants_of_a_backfill_are_run_up_to_their_number_and_refused_one_beyond_it"),
    ),
    (
        "src/executor/pipeline/steps/store.rs: VALUE_BYTES",
        By("items_and_values_are_taken_at_their_bounds_and_fail_the_step_one_beyond_them"),
    ),
    ("src/base/expr/cost.rs: MADE_BYTES", By("made_value_is_as_large_as_it_may_be_and_no_larger")),
    ("src/base/expr/cost.rs: MOST_STEPS", By("steps_are_affordable_up_to_their_bound")),
    ("src/base/expr/extent.rs: VALUE_DEPTH", By("made_values_and_given_ones_are_bounded")),
    ("src/base/expr/extent.rs: VALUE_NODES", By("made_values_and_given_ones_are_bounded")),
    ("src/base/expr/guard.rs: COMPREHENSIONS", By("expression_is_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/base/expr/guard.rs: DEPTH", By("expression_is_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/base/expr/guard.rs: EXPRESSION_BYTES", By("expression_is_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/base/expr/guard.rs: NESTED", By("expression_is_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/base/expr/guard.rs: NODES", By("expression_is_taken_at_each_bound_and_refused_one_beyond_it")),
    (
        "src/base/expr/pattern.rs: MADE_PATTERN_BYTES",
        By("patterns_are_bounded_where_they_are_written_and_where_they_are_made"),
    ),
    (
        "src/base/expr/pattern.rs: MADE_PATTERN_POSITIONS",
        By("patterns_are_bounded_where_they_are_written_and_where_they_are_made"),
    ),
    (
        "src/base/expr/pattern.rs: PATTERN_POSITIONS",
        By("patterns_are_bounded_where_they_are_written_and_where_they_are_made"),
    ),
    ("src/http/pages/approve/form.rs: DEPTH", By("form_has_as_many_fields_and_levels_as_it_may_and_the_rest_is_json")),
    ("src/http/pages/approve/form.rs: MOST", By("form_has_as_many_fields_and_levels_as_it_may_and_the_rest_is_json")),
    (
        "src/http/pages/approve/page_room.rs: FORM_BYTES",
        By("form_has_as_many_bytes_as_it_may_and_a_question_for_input_needs_one"),
    ),
    (
        "src/http/pages/approve/page_room.rs: SHOWN_BYTES",
        By("question_is_shown_whole_at_the_bound_and_by_its_beginning_one_byte_beyond_it"),
    ),
    (
        "src/store/approvals/links.rs: BATCH_BYTES",
        By("batch_is_read_whole_up_to_its_bound_and_beyond_it_by_beginnings"),
    ),
    ("src/http/error.rs: FAULTS", By("faults_are_told_up_to_a_number_and_counted_beyond_it")),
    (
        "src/http/api/explain/event.rs: LOOKED_AT",
        By("event_tasks_are_looked_at_up_to_their_number_and_one_beyond_it_is_told"),
    ),
    (
        "src/http/api/explain/event.rs: STEPS",
        By("filters_are_evaluated_up_to_the_steps_of_all_and_the_next_one_is_not"),
    ),
    ("src/http/api/explain/event.rs: TAKEN_APART", By("triggers_that_are_not_told_are_counted")),
    ("src/http/api/explain/event.rs: TOLD", By("triggers_that_are_not_told_are_counted")),
    ("src/http/api/explain/instant.rs: TEXT", By("instant_is_explained_at_its_longest_and_refused_one_beyond_it")),
    ("src/http/ui/work/tasks/long_texts.rs: TEXT_BYTES", By("text_is_whole_at_its_bound_and_cut_one_byte_beyond_it")),
    ("src/http/ui/work/tasks/long_texts.rs: STEPS_BYTES", By("steps_have_so_much_room_together_and_each_is_told")),
    ("src/http/ui/operations/audit.rs: BODY_BYTES", By("body_is_shown_at_its_longest_and_cut_one_byte_beyond_it")),
    (
        "src/http/ui/people/conversations.rs: SHOWN_CHARS",
        By("text_of_a_conversation_is_shown_at_its_longest_and_cut_one_character_beyond_it"),
    ),
    (
        "src/http/ui/work/events/data.rs: DATA_SHOWN",
        By("data_is_shown_up_to_its_bound_and_cut_one_character_beyond_it"),
    ),
    (
        "src/http/ui/work/dead_letters/bulk.rs: AT_ONCE",
        Not("nothing is refused: what is beyond it is dealt with by the next form"),
    ),
    ("src/http/request/host.rs: HOST_BYTES", By("host_is_there_once_and_can_be_read_in_one_way")),
    ("src/http/api/tasks/import.rs: HELD", By("first_event_tasks_of_an_import_are_held_against_kept_events")),
    ("src/http/api/tasks/kept_events.rs: SAMPLES", By("trigger_is_held_against_the_newest_events_of_its_own")),
    ("src/http/api/tasks/kept_events.rs: AMONG", By("trigger_is_held_against_the_newest_events_of_its_own")),
    (
        "src/domain/trigger/event/compiled/missing_field.rs: HELD_STEPS",
        By("trigger_is_held_against_events_up_to_its_steps_and_not_beyond_them"),
    ),
    ("src/http/api/tasks/import.rs: BARREN", By("import_of_nothing_but_empty_or_bad_lines_ends_at_its_bound")),
    ("src/http/api/tasks/import.rs: GROUP", IN_TURNS),
    ("src/http/server/proxies.rs: HOPS", By("header_is_followed_through_so_many_hops_and_no_further")),
    ("src/http/api/tokens.rs: MOST_SCOPES", By("tokens_are_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/base/invalid.rs: HINT_BYTES", By("hint_is_not_looked_for_beyond_the_longest_name")),
    ("src/base/invalid.rs: MESSAGE_BYTES", By("fault_is_whole_up_to_each_bound_and_cut_one_beyond_it")),
    ("src/base/invalid.rs: NAMED", By("unknown_fields_are_named_up_to_a_number")),
    ("src/base/invalid.rs: POINTER_BYTES", By("fault_is_whole_up_to_each_bound_and_cut_one_beyond_it")),
    ("src/base/json/schema.rs: MOST_STEPS", By("check_is_refused_by_steps_before_it_is_done")),
    (
        "src/ports/tool/access.rs: MOST_NAMES",
        By("list_of_a_task_is_taken_at_its_longest_and_refused_one_name_beyond_it"),
    ),
    (
        "src/agent/calls/result_cache.rs: ARGUMENTS",
        By("call_with_arguments_at_the_bound_is_kept_and_one_byte_beyond_it_is_not"),
    ),
    ("src/agent/calls/observation.rs: CALLS_PER_TURN", By("turn_makes_fifty_calls_and_each_beyond_them_is_refused")),
    (
        "src/agent/prompt/context_source.rs: SOURCE_CHARS",
        By("sources_of_context_stand_behind_the_instructions_and_one_that_fails_adds_nothing"),
    ),
    (
        "src/ports/llm/tokens/exact.rs: KNOWN_TEXTS",
        By("counts_of_so_many_texts_are_remembered_and_the_oldest_makes_room"),
    ),
    (
        "src/ports/llm/tokens/exact.rs: WAITED_SECONDS",
        By("counts_are_waited_for_so_long_and_later_ones_are_there_for_the_next_time"),
    ),
    ("src/store/ops/login_links.rs: MOST_LINKS", By("links_of_a_token_are_bounded_and_the_oldest_is_gone")),
    ("src/store/ops/ui_sessions.rs: MOST_SESSIONS", By("sessions_of_a_token_are_bounded_and_the_oldest_ends")),
    ("src/store/ops/tokens.rs: MOST_TOKENS", By("tokens_of_a_tenant_are_bounded_and_the_oldest_dead_one_makes_room")),
    ("src/executor/hub.rs: BACKLOG", By("slow_watcher_is_told_how_much_it_missed")),
    (
        "src/executor/hub.rs: BACKLOG_BYTES",
        By("events_wait_up_to_their_bytes_and_the_oldest_is_missed_one_byte_beyond_them"),
    ),
    ("src/store/ops/budgets.rs: MOST_TASK_BUDGETS", By("tasks_with_budgets_of_their_own_are_bounded")),
    ("src/agent/context/lasting_notices.rs: LONGEST", By("lasting_notice_is_shown_up_to_its_longest")),
    ("src/agent/context/lasting_notices.rs: MOST", By("oldest_lasting_notices_go_where_there_are_too_many")),
    ("src/executor/host.rs: WHOLE_FILES", IN_TURNS),
    ("src/base/metrics/trace.rs: CONTENT_BYTES", By("text_of_a_span_is_kept_up_to_its_bound")),
    ("src/agent/calls/shown.rs: LARGE", By("result_over_a_mebibyte_is_in_a_data_file_and_its_beginning_is_shown")),
    ("src/domain/data_file.rs: FILE_BYTES", By("result_is_kept_at_the_longest_file_and_not_one_byte_beyond_it")),
    (
        "src/domain/data_file/pointer.rs: POINTER_BYTES",
        By("pointer_is_taken_at_its_longest_and_refused_one_byte_beyond_it"),
    ),
    ("src/domain/data_file/search.rs: FOUND", By("search_ends_with_as_many_lines_as_it_may_and_says_where_to_go_on")),
    ("src/domain/data_file/search.rs: LINE_BYTES", By("long_line_is_searched_in_pieces_and_shown_by_its_beginning")),
    ("src/executor/host/data_files.rs: SEARCHED", IN_TURNS),
    (
        "src/ports/tool/registry.rs: MAX_INPUT",
        By("arguments_are_taken_at_their_longest_and_refused_one_byte_beyond_it"),
    ),
    ("src/ports/tool/mcp/settings/check.rs: SERVERS", By("servers_are_taken_up_to_their_most_and_each_name_once")),
    ("src/ports/tool/mcp/listing.rs: LISTED_TOOLS", By("tools_beyond_the_most_are_set_aside")),
    (
        "src/ports/tool/mcp/listing.rs: LISTING_BYTES",
        By("tools_are_taken_up_to_the_most_bytes_and_set_aside_one_byte_beyond_it"),
    ),
    ("src/ports/tool/mcp/listing.rs: SOONEST", By("list_is_asked_for_again_as_the_server_says_within_bounds")),
    ("src/ports/tool/mcp/listing.rs: LATEST", By("list_is_asked_for_again_as_the_server_says_within_bounds")),
    ("src/ports/tool/mcp/listing.rs: AGAIN_AFTER", By("list_is_asked_for_again_as_the_server_says_within_bounds")),
    ("src/ports/tool/mcp/listing.rs: LISTING_PAGES", By("list_without_an_end_is_read_up_to_the_most_pages")),
    (
        "src/ports/tool/mcp/listing.rs: CURSOR_BYTES",
        By("cursor_is_taken_at_its_longest_and_the_list_ends_one_byte_beyond_it"),
    ),
    (
        "src/ports/tool/mcp/listed_tool.rs: TOOL_NAME_BYTES",
        By("name_of_a_tool_is_taken_at_its_longest_and_refused_one_byte_beyond_it"),
    ),
    (
        "src/ports/tool/mcp/listed_tool.rs: DESCRIPTION_BYTES",
        By("description_and_schema_are_taken_at_their_longest_and_refused_one_byte_beyond_it"),
    ),
    (
        "src/ports/tool/mcp/listed_tool.rs: SCHEMA_BYTES",
        By("description_and_schema_are_taken_at_their_longest_and_refused_one_byte_beyond_it"),
    ),
    (
        "src/ports/tool/mcp/stdio/bounded_lines.rs: MESSAGE_BYTES",
        By("message_is_whole_at_the_bound_and_an_error_beyond_it"),
    ),
    (
        "src/ports/tool/mcp/output_budget.rs: OUTPUT_BYTES",
        By("server_writes_as_much_as_it_may_and_has_flooded_with_one_byte_or_message_more"),
    ),
    (
        "src/ports/tool/mcp/output_budget.rs: OUTPUT_MESSAGES",
        By("server_writes_as_much_as_it_may_and_has_flooded_with_one_byte_or_message_more"),
    ),
    (
        "src/ports/tool/mcp/output_budget.rs: OUTPUT_BYTES_PER_SECOND",
        By("time_adds_to_what_is_left_and_so_does_each_message_that_is_sent"),
    ),
    (
        "src/ports/tool/mcp/output_budget.rs: OUTPUT_MESSAGES_PER_SECOND",
        By("time_adds_to_what_is_left_and_so_does_each_message_that_is_sent"),
    ),
    ("src/ports/tool/mcp/stdio/stderr_tail.rs: STDERR_BYTES", By("flood_leaves_no_more_than_its_end")),
    ("src/ports/tool/mcp/call_result.rs: LINKS", By("links_are_named_beside_the_result_up_to_their_most")),
    (
        "src/ports/tool/mcp/call_result.rs: FILES",
        By("attachments_are_taken_up_to_their_most_with_their_types_and_lengths"),
    ),
    ("src/ports/tool/mcp/call_result.rs: MESSAGE_CHARS", By("failed_tool_says_why_in_its_words")),
    ("src/ports/tool/mcp/fault.rs: MESSAGE_CHARS", By("message_of_a_server_is_told_up_to_its_longest")),
    ("src/ports/tool/mcp/input/read.rs: REQUESTS", By("question_is_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/ports/tool/mcp/input/read.rs: KEY_BYTES", By("question_is_taken_at_each_bound_and_refused_one_beyond_it")),
    (
        "src/ports/tool/mcp/input/read.rs: QUESTION_CHARS",
        By("question_is_taken_at_each_bound_and_refused_one_beyond_it"),
    ),
    ("src/ports/tool/mcp/input/read.rs: STATE_BYTES", By("state_is_taken_at_its_longest_and_kept_whole")),
    (
        "src/ports/tool/mcp/input/read.rs: URL_BYTES",
        By("page_has_an_address_of_https_or_of_the_loopback_and_holds_no_name"),
    ),
    ("src/ports/tool/mcp/input/schema.rs: FIELDS", By("question_is_taken_at_each_bound_and_refused_one_beyond_it")),
    (
        "src/ports/tool/mcp/input/schema.rs: FIELD_NAME_BYTES",
        By("question_is_taken_at_each_bound_and_refused_one_beyond_it"),
    ),
    ("src/ports/tool/mcp/input/schema.rs: CHOICES", By("choices_are_taken_at_their_bounds_and_refused_beyond_them")),
    (
        "src/ports/tool/mcp/input/schema.rs: CHOICE_CHARS",
        By("choices_are_taken_at_their_bounds_and_refused_beyond_them"),
    ),
    ("src/ports/tool/mcp/input/schema.rs: ANSWER_CHARS", By("text_is_answered_up_to_its_bound_alone")),
    (
        "src/domain/approval/server_question.rs: ROUNDS",
        By("answers_of_earlier_rounds_are_kept_where_the_call_is_repeated_and_rounds_have_an_end"),
    ),
    ("src/ports/tool/mcp/mcp_tool.rs: STATE_REPEATS", By("state_alone_is_handed_back_so_often_and_no_more")),
    (
        "src/ports/tool/mcp/connection/live_calls.rs: ASKED_PER_CALL",
        By("questions_of_a_call_are_kept_up_to_their_most_and_all_are_answered"),
    ),
    ("src/ports/tool/mcp/server.rs: CALLS_AT_ONCE", IN_TURNS),
    (
        "src/domain/approval/tool_pin.rs: PINS",
        By("pins_are_kept_up_to_the_most_and_a_tool_beyond_them_is_not_recorded"),
    ),
    ("src/domain/approval/tool_difference.rs: LINES", By("lines_are_shown_up_to_the_most_and_counted_beyond_it")),
    (
        "src/domain/approval/tool_difference.rs: COMPARED",
        By("lines_are_compared_up_to_the_most_and_beyond_it_all_are_gone_and_new"),
    ),
    ("src/domain/approval/tool_difference.rs: LINE_CHARS", By("line_goes_on_in_the_next_one_beyond_its_bound")),
    ("src/engine/maintenance/tool_announcer.rs: TENANTS", By("many_tenants_are_told_in_turns")),
    (
        "src/ports/tool/mcp/connection/progress.rs: READ_BYTES",
        By("message_is_read_at_its_longest_and_left_out_beyond_it"),
    ),
    ("src/ports/tool/progress.rs: MESSAGE_CHARS", By("message_is_shown_at_its_longest_and_cut_beyond_it")),
    (
        "src/executor/tool_trial.rs: AT_ONCE",
        By("no_more_are_under_way_than_the_most_and_a_tenant_leaves_some_to_others"),
    ),
    ("src/executor/tool_trial.rs: LIMIT_SECONDS", By("call_that_takes_too_long_is_given_up_and_may_have_acted")),
    (
        "src/executor/tool_trial/outcome.rs: SHOWN_BYTES",
        By("result_is_shown_whole_up_to_the_bound_and_its_beginning_beyond_it"),
    ),
    (
        "src/ports/tool/mcp/tenant_connections.rs: TENANT_CONNECTIONS",
        By("tenants_up_to_the_most_keep_their_connections_and_one_beyond_takes_the_place_of_the_oldest"),
    ),
    ("src/base/json/schema.rs: SCHEMAS", By("schema_has_so_many_parts_and_levels_and_does_not_name_itself")),
    ("src/base/json/schema.rs: SCHEMA_DEPTH", By("schema_has_so_many_parts_and_levels_and_does_not_name_itself")),
    (
        "src/domain/notification/recipient/push.rs: ADDRESSES",
        By("recipient_has_as_many_push_addresses_as_it_may_and_no_more"),
    ),
    (
        "src/domain/notification/recipient/quiet.rs: QUIET_HOURS",
        By("stretches_and_times_are_taken_up_to_their_numbers_and_refused_one_beyond_them"),
    ),
    (
        "src/domain/notification/recipient/reading.rs: ADDRESS_LENGTH",
        By("addresses_and_locale_are_taken_at_their_longest_and_refused_one_beyond_it"),
    ),
    (
        "src/domain/notification/recipient/reading.rs: LISTED",
        By("lists_are_taken_at_their_longest_and_refused_one_beyond_it"),
    ),
    ("src/ports/poll.rs: VALUE_BYTES", By("value_that_is_too_large_to_keep_is_a_failing_poll")),
    (
        "src/ports/poll/redis.rs: FIELDS",
        By("redis_hashes_and_texts_are_read_at_their_bounds_and_too_large_one_beyond_them"),
    ),
    ("src/ports/poll/sql.rs: POLLED", By("one_tenant_never_holds_all_connections_of_a_database")),
    ("src/ports/poll/sql.rs: ROWS", By("too_many_rows_and_too_long_ones_are_failing_polls")),
    ("src/ports/poll/sql.rs: TRIED", By("one_tenant_never_holds_all_connections_of_a_database")),
    ("src/ports/poll/sql/sqlite.rs: COLUMNS", By("row_has_as_many_columns_as_it_may_and_no_more")),
    (
        "src/ports/poll/sql/sqlite.rs: LONGEST",
        By("value_that_is_read_or_made_is_taken_at_the_bound_and_refused_one_byte_beyond_it"),
    ),
    (
        "src/store/credentials/resuming.rs: AT_ONCE",
        By("many_tasks_that_wait_go_on_in_their_order_a_few_at_a_time_each_at_its_own_instant"),
    ),
    ("src/domain/task/draft.rs: CHANNELS", By("task_names_as_many_channels_as_it_may_and_no_more")),
    ("src/domain/task/fields.rs: METADATA_BYTES", By("tasks_are_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/base/template/guard.rs: BRANCHES", By("deepest_expression_that_is_admitted_fits_the_smallest_stack")),
    ("src/base/template/limits.rs: FUEL", By("rendering_has_its_fuel_and_ends_with_it")),
    ("src/base/template/guard.rs: JOINTS", By("template_of_unbounded_cost_is_refused")),
    ("src/base/template/guard.rs: OPERATORS", By("deepest_expression_that_is_admitted_fits_the_smallest_stack")),
    ("src/base/template/limits.rs: OUTPUT_BYTES", By("work_and_output_are_bounded")),
    ("src/base/template/limits.rs: TEMPLATE_BYTES", By("template_of_unbounded_cost_is_refused")),
    ("src/base/template/meter.rs: WORK_BYTES", By("work_is_done_up_to_its_bound_and_not_a_byte_beyond_it")),
    (
        "src/base/template/work.rs: MOST_STEPS",
        By("looks_at_long_texts_that_are_written_out_one_after_the_other_are_bounded"),
    ),
    (
        "src/domain/trigger/condition/form.rs: QUERY_BYTES",
        By("query_is_taken_at_its_longest_and_refused_one_beyond_it"),
    ),
    (
        "src/domain/trigger/cron/expression.rs: LENGTH",
        By("expression_is_taken_at_its_longest_and_refused_one_beyond_it"),
    ),
    ("src/domain/trigger/event/form.rs: FILTERS", By("tasks_are_taken_at_each_bound_and_refused_one_beyond_it")),
    (
        "src/domain/trigger/event/form.rs: FILTER_BYTES",
        By("filters_have_names_and_texts_up_to_their_bytes_and_none_beyond_them"),
    ),
    ("src/domain/trigger/exclusion.rs: LENGTH", By("exclusions_are_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/domain/trigger/exclusion.rs: MOST", By("exclusions_are_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/domain/trigger/exclusion.rs: MOST_TEXT", By("exclusions_are_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/domain/trigger/interval.rs: LENGTH_BYTES", By("length_is_taken_at_its_longest_and_refused_one_beyond_it")),
    ("src/domain/trigger/rrule/parts.rs: MOST_COUNT", By("rule_is_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/domain/trigger/rrule/parts.rs: MOST_VALUES", By("rule_is_taken_at_each_bound_and_refused_one_beyond_it")),
    (
        "src/domain/trigger/timetable.rs: LONGEST_TEXT",
        By("text_of_a_schedule_is_taken_at_its_longest_and_refused_one_beyond_it"),
    ),
    ("src/domain/trigger/steps.rs: ADMITTED", By("each_budget_is_whole_at_its_last_step_and_used_up_by_the_next")),
    ("src/domain/trigger/steps.rs: LISTED", By("each_budget_is_whole_at_its_last_step_and_used_up_by_the_next")),
    ("src/domain/trigger/steps.rs: PLANNED", By("each_budget_is_whole_at_its_last_step_and_used_up_by_the_next")),
    (
        "src/ports/llm/retry.rs: CALL_ID_BYTES",
        By("id_of_a_call_is_taken_at_its_longest_and_refused_one_byte_beyond_it_or_with_a_control_character"),
    ),
    ("src/ports/llm/provider_message.rs: LIMIT", By("message_is_kept_up_to_its_limit_and_never_with_the_key")),
    (
        "src/http/api/explain/event.rs: BYTES",
        By("triggers_are_told_in_their_bytes_and_the_last_is_left_out_one_byte_beyond_them"),
    ),
    ("src/http/api/explain/event.rs: PAGE", IN_TURNS),
    ("src/base/id.rs: TENANT_CHARACTERS", By("tokens_are_taken_at_each_bound_and_refused_one_beyond_it")),
    (
        "src/domain/notification/recipient/email.rs: LOCAL_BYTES",
        By("address_is_taken_at_its_longest_and_refused_one_beyond_it"),
    ),
    (
        "src/domain/notification/recipient/email.rs: DOMAIN_BYTES",
        By("address_is_taken_at_its_longest_and_refused_one_beyond_it"),
    ),
    ("src/http/request/page.rs: MOST", By("limit_out_of_range_and_a_made_up_cursor_are_faults")),
    ("src/domain/trigger/event.rs: EVENT_RUNS", By("fan_out_beyond_the_limit_is_recorded_as_skipped")),
    ("src/http/request/body.rs: JSON_DEPTH", By("body_is_read_at_its_deepest_and_refused_one_level_beyond_it")),
    (
        "src/http/request/body.rs: READ_IN_PLACE",
        By("body_of_each_operation_is_read_on_a_computing_thread_where_it_is_long"),
    ),
    ("src/base/compute.rs: JSON_IN_PLACE", By("json_is_read_in_place_up_to_its_bound_and_not_one_byte_beyond_it")),
    (
        "src/ports/bus/entry_reader.rs: PIECE",
        By("entries_are_read_in_their_order_in_place_up_to_a_bound_and_in_pieces_beyond_it"),
    ),
    ("src/ports/bus/redis/log.rs: PAGE_BYTES", By("part_of_the_log_ends_with_its_bytes_and_the_next_goes_on")),
    ("src/ports/bus/redis/look.rs: LOOKED_AT", By("look_ends_with_its_entries_or_with_its_bytes")),
    ("src/ports/bus/redis/look.rs: LOOKED_AT_BYTES", By("look_into_a_stream_ends_with_its_bytes")),
    ("src/ports/bus/redis/dead.rs: LETTERS", By("look_ends_with_its_entries_or_with_its_bytes")),
    ("src/ports/bus/redis/dead.rs: LETTER_BYTES", By("look_ends_with_its_entries_or_with_its_bytes")),
    ("src/store/events.rs: IDS_LOOKED_AT", By("so_many_ids_are_looked_at_for_those_that_begin_so")),
    ("src/http/hooks/receipts.rs: REPORT_BYTES", By("report_is_taken_at_its_longest_and_refused_one_byte_beyond_it")),
    ("src/ports/vault/oauth/endpoint.rs: ANSWER_BYTES", OF_PROVIDERS),
    (
        "src/ports/vault/oauth/metadata.rs: ADDRESS_BYTES",
        By("address_is_taken_at_its_longest_and_not_one_byte_beyond_it"),
    ),
    (
        "src/ports/vault/oauth/client.rs: CLIENT_BYTES",
        By("registration_is_read_with_its_longest_id_and_told_what_is_odd"),
    ),
    (
        "src/ports/vault/oauth/known.rs: SCOPE_BYTES",
        By("scopes_are_asked_for_up_to_their_most_and_the_operator_names_them_beyond_it"),
    ),
    (
        "src/domain/credential.rs: MISSED_SCOPES",
        By("scopes_that_are_missed_are_kept_up_to_their_most_the_last_ones_first"),
    ),
    (
        "src/ports/vault/oauth/challenge.rs: CHALLENGE_BYTES",
        By("challenge_is_found_among_several_headers_and_a_long_one_says_nothing"),
    ),
    ("src/ports/vault/oauth/challenge.rs: SCOPE_NAME_BYTES", By("words_that_can_be_scopes_are_taken_and_no_others")),
    ("src/ports/channel/provider.rs: ANSWER_LIMIT", OF_PROVIDERS),
    ("src/ports/channel/push.rs: ANSWER_LIMIT", OF_PROVIDERS),
    ("src/domain/task.rs: INSTRUCTION_LENGTH", By("tasks_are_taken_at_each_bound_and_refused_one_beyond_it")),
    ("src/executor/orchestrator.rs: PERSONA_LENGTH", By("persona_is_taken_at_its_longest_and_refused_one_beyond_it")),
    ("src/domain/credential.rs: DOCUMENT_BYTES", By("document_is_anything_of_json_up_to_64_kib")),
    ("src/domain/credential.rs: DOCUMENT_TEXTS", By("document_is_taken_with_its_most_texts_and_refused_with_one_more")),
    (
        "src/domain/credential.rs: RUN_SECRETS",
        By("texts_of_a_run_are_taken_up_to_their_most_and_refused_one_beyond_it"),
    ),
    (
        "src/domain/credential.rs: RUN_SECRET_BYTES",
        By("bytes_of_a_run_s_texts_are_taken_up_to_their_most_and_refused_one_beyond_it"),
    ),
    ("src/domain/trigger/event.rs: WINDOW_EVENTS", By("batch_is_taken_at_its_largest_and_refused_one_beyond_it")),
    ("src/domain/trigger/event.rs: WINDOW_BYTES", By("window_that_would_grow_too_large_closes_first")),
    ("src/domain/trigger/event.rs: HELD_EVENTS", By("full_hold_says_so")),
    ("src/domain/trigger/event/compiled.rs: KEY_BYTES", By("key_is_kept_at_its_longest_and_as_its_hash_beyond_it")),
    (
        "src/executor/pipeline/steps/publish.rs: MOST_HOPS",
        By("events_are_published_under_the_step_s_own_id_and_circles_end"),
    ),
    ("src/domain/trigger/catch_up.rs: MOST_CAUGHT_UP", By("all_runs_each_and_at_most_the_newest_hundred")),
    (
        "src/domain/trigger/condition/form.rs: MOST_HEADERS",
        By("headers_of_a_poll_are_taken_up_to_their_number_and_refused_one_beyond_it"),
    ),
    ("src/domain/trigger/zone.rs: NAME_BYTES", By("zone_and_instant_are_read_up_to_their_bounds")),
    ("src/domain/trigger/zone.rs: TIME_BYTES", By("zone_and_instant_are_read_up_to_their_bounds")),
    ("src/http/ui/operations/tools.rs: WAITING", Not("nothing is refused: the others come once these are accepted")),
    ("src/http/ui/operations/whole_list.rs: ROWS", By("page_has_fifty_rows_and_the_next_begins_behind_its_last")),
    (
        "src/http/ui/operations/tools/rows.rs: DESCRIPTION",
        By("row_names_the_agents_that_are_offered_the_tool_and_leads_to_its_page"),
    ),
    ("src/http/ui/operations/usage/chart.rs: MOST_LINES", By("lines_are_the_largest_first_and_end_within_the_chart")),
    ("src/http/mcp/rate.rs: REQUESTS_PER_MINUTE", By("token_is_answered_at_its_rate_and_refused_one_beyond_it")),
    ("src/http/mcp/envelope.rs: METHOD_BYTES", By("method_is_read_at_its_longest_and_refused_one_byte_beyond")),
    ("src/http/mcp/envelope.rs: ID_BYTES", By("id_is_a_whole_number_or_a_text_up_to_its_length")),
    ("src/http/mcp/client.rs: KEY_BYTES", By("key_is_read_at_its_longest_and_refused_one_byte_beyond")),
    ("src/http/mcp/outcome.rs: SHOWN_CHARS", By("text_is_whole_at_the_bound_and_cut_one_beyond")),
    ("src/http/mcp/outcome.rs: RESULT_BYTES", By("result_has_its_structure_up_to_the_bound_and_text_alone_beyond")),
    ("src/http/mcp/tools/arguments.rs: LISTED", By("list_has_as_many_items_as_may_be_asked_for")),
    ("src/http/mcp/questions.rs: MOST_REQUESTS", By("run_with_many_questions_shows_the_first_twenty")),
    ("src/http/mcp/request_state.rs: STATE_BYTES", By("state_is_read_at_its_longest_and_refused_beyond")),
    ("src/http/mcp/skills.rs: PAGE", By("skills_come_fifty_to_a_page")),
    ("src/http/mcp/skills.rs: URI_BYTES", By("address_is_read_at_its_longest_and_refused_one_byte_beyond_it")),
    ("src/cli/remote/mcp/session.rs: LINE_BYTES", By("line_is_sent_at_its_longest_and_refused_one_byte_beyond")),
    ("src/cli/remote/mcp/session.rs: AT_ONCE", IN_TURNS),
];

#[test]
fn each_bound_of_the_page_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/limits.md")).expect("the page");
    let named = rows(&page).into_iter().flat_map(|row| row.constants);
    let named: BTreeSet<String> = named.map(|(path, name)| format!("{path}: {name}")).collect();
    let listed: BTreeSet<String> = TESTED.iter().map(|(bound, _)| (*bound).to_owned()).collect();
    assert_eq!(named, listed, "what the page names, and what is listed here");
    let sources = Source::read_all(root, &["src", "tests"], &["rs"]);
    let found: Vec<String> = TESTED.iter().filter_map(|(bound, tested)| fault(bound, tested, &sources)).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn bound_without_a_test_that_knows_it_is_found() {
    let unit = "const MOST: usize = 1_000;\nmod tests {\nfn most_is_taken() { take(MOST); take(MOST + 1) }\n}\n";
    let sources =
        [Source::new("src/a.rs", unit), Source::new("tests/it/a.rs", "fn a_list() { take(1_000) }\nfn other() {}")];
    let of = |test| fault("src/a.rs: MOST", &By(test), &sources).unwrap_or_default();
    assert_eq!((of("most_is_taken"), of("a_list")), (String::new(), String::new()));
    assert_eq!(of("gone"), "src/a.rs: MOST: there is no test `gone`");
    let blind = [Source::new("src/a.rs", unit), Source::new("tests/it/b.rs", "fn blind() { take(10_000) }")];
    let found = fault("src/a.rs: MOST", &By("blind"), &blind).unwrap();
    assert_eq!(found, "src/a.rs: MOST: where `blind` stands there is neither its name nor 1,000");
    assert_eq!(fault("src/a.rs: MOST", &IN_TURNS, &blind), None);
}

/// The fault of a bound's test: it is not there, or the tests where it stands know neither the constant nor its number.
fn fault(bound: &str, tested: &BoundTest, sources: &[Source]) -> Option<String> {
    let test = match tested {
        By(test) => test,
        Not(why) => return why.is_empty().then(|| format!("{bound}: has neither a test nor a reason")),
    };
    let (path, name) = bound.split_once(": ")?;
    let beside: Vec<&Source> = sources.iter().filter(|source| source.raw.contains(&format!("fn {test}("))).collect();
    if beside.is_empty() {
        return Some(format!("{bound}: there is no test `{test}`"));
    }
    let number = thousands(constant(&sources.iter().find(|source| source.path == path)?.raw, name)?);
    let is_it = |word: &str| word == name || word.replace('_', "") == number.replace(',', "");
    let is_known = beside.iter().any(|source| {
        let tests = source.raw.split_once("mod tests {").map_or(source.raw.as_str(), |(_, tests)| tests);
        tests.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(is_it)
    });
    (!is_known).then(|| format!("{bound}: where `{test}` stands there is neither its name nor {number}"))
}
