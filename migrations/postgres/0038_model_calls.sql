-- The call of a model that made an assistant's message: which model answered, and the tokens that providers count apart.
-- Same number, tables and columns as migrations/sqlite/0038_model_calls.sql.

-- Name of the model in the settings; null where no model was asked, and in rows of format 1.
alter table turns add column model text;
-- Parts of `input_tokens`: read from the provider's cache, and written to it.
alter table turns add column cache_read_tokens bigint not null default 0;
alter table turns add column cache_write_tokens bigint not null default 0;
-- The part of `output_tokens` that is thinking.
alter table turns add column reasoning_tokens bigint not null default 0;
