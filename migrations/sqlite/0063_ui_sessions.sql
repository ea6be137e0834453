-- Sessions of the dashboard, and the links that begin one. Each is known by the hash of its secret alone, and stands for a
-- token, by the hash of that: they are the token's, so no tenant stands here.
-- Same number, tables and columns as migrations/postgres/0063_ui_sessions.sql.

-- The configured admin token has sessions as well, and no row in `tokens`.
create table ui_sessions (
    hash        blob primary key,
    token_hash  blob not null,
    created_at  text not null,
    -- the last request, to the minute
    seen_at     text not null,
    ends_at     text not null
);
create index ui_sessions_of_token on ui_sessions (token_hash, created_at, hash);
create index ui_sessions_ended on ui_sessions (ends_at);

create table login_links (
    hash        blob primary key,
    token_hash  blob not null,
    made_at     text not null,
    expires_at  text not null,
    spent_at    text
);
create index login_links_of_token on login_links (token_hash, made_at, hash);
create index login_links_expired on login_links (expires_at);
