-- since when a message is to be sent, where that is not since it was made: it was held, or somebody sends it again
alter table deliveries add column due_at text;
