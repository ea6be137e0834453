-- Parts of a request in the form of Open Responses that its response repeats whenever it is read. Null in runs that other requests
-- have begun, and in those that were recorded before.
-- Same number, tables and columns as migrations/sqlite/0058_request_echoes.sql.

-- it asked for a response in the background
alter table runs add column in_background boolean;
-- the run of the response that it goes on with
alter table runs add column previous_run uuid;
