settled as (
    delete from budget_reservations r
     using jsonb_to_recordset({batch} -> 'settled') as s (id uuid, tokens bigint, cost_micros bigint)
     where r.id = any (array[s.id]) and {held}
    returning r.tenant_id, r.task_id, r.day, s.tokens as spent_tokens, s.cost_micros as spent_cost, r.tokens, r.cost_micros
), released as (
    delete from budget_reservations r
     where r.run_id = any (array(select e.run_id from jsonb_to_recordset({batch} -> 'ended') as e (run_id uuid) where {ended}))
       and not r.id = any (array(select s.id from jsonb_to_recordset({batch} -> 'settled') as s (id uuid)))
    returning r.tenant_id, r.task_id, r.day, cast(0 as bigint) as spent_tokens, cast(0 as bigint) as spent_cost, r.tokens,
              r.cost_micros
), asked as materialized (
    select r.*
      from jsonb_to_recordset({batch} -> 'asked')
             as r (id uuid, run_id uuid, lease_token bigint, tenant_id text, task_id uuid, day date, tokens bigint,
                   cost_micros bigint, from_seq bigint, parts bigint, tenant_tokens bigint, tenant_cost bigint, task_tokens bigint, task_cost bigint)
     where {held}
), changes as materialized (
    select tenant_id, task_id, day, cast(sum(spent_tokens) as bigint) as spent_tokens,
           cast(sum(spent_cost) as bigint) as spent_cost, cast(sum(back_tokens) as bigint) as back_tokens,
           cast(sum(back_cost) as bigint) as back_cost, cast(sum(asked_tokens) as bigint) as asked_tokens,
           cast(sum(asked_cost) as bigint) as asked_cost, bool_or(is_asked) as is_asked,
           bool_or(not is_asked) as is_ended, max(parts) as parts, min(tokens_limit) as tokens_limit, min(cost_limit) as cost_limit
      from (select e.tenant_id, l.task_id, e.day, e.spent_tokens, e.spent_cost, e.tokens as back_tokens,
                   e.cost_micros as back_cost, 0 as asked_tokens, 0 as asked_cost, false as is_asked, cast(1 as bigint) as parts,
                   cast(null as bigint) as tokens_limit, cast(null as bigint) as cost_limit
              from (select * from settled union all select * from released) e
             cross join lateral (values (cast('00000000-0000-0000-0000-000000000000' as uuid)), (e.task_id)) l (task_id)
             where l.task_id is not null
            union all
            select a.tenant_id, l.task_id, a.day, 0, 0, 0, 0, a.tokens, a.cost_micros, true, a.parts, l.tokens_limit, l.cost_limit
              from asked a
             cross join lateral (values (cast('00000000-0000-0000-0000-000000000000' as uuid), a.tenant_tokens, a.tenant_cost),
                                        (a.task_id, a.task_tokens, a.task_cost)) l (task_id, tokens_limit, cost_limit)
             where l.task_id is not null) one
     group by tenant_id, task_id, day
), locked as materialized (
    select d.*
      from (select tenant_id, task_id, day from changes order by tenant_id collate "C", task_id, day) c
     cross join lateral (
           select d.tenant_id, d.task_id, d.day, d.tokens, d.cost_micros, d.reserved_tokens, d.reserved_cost_micros,
                  d.tokens_limit, d.cost_micros_limit
             from budget_days d
            where d.day = c.day and d.tenant_id = c.tenant_id and d.task_id = c.task_id
              for update) d
), fit as materialized (
    select coalesce(bool_and(
               {there}
               and (c.tokens_limit is null
                    or coalesce(l.tokens + l.reserved_tokens, 0) + c.spent_tokens - c.back_tokens + c.asked_tokens
                       <= c.tokens_limit / c.parts)
               and (c.cost_limit is null
                    or coalesce(l.cost_micros + l.reserved_cost_micros, 0) + c.spent_cost - c.back_cost + c.asked_cost
                       <= c.cost_limit / c.parts)
           ), true) as is_reserved
      from changes c
      left join locked l on l.day = c.day and l.tenant_id = c.tenant_id and l.task_id = c.task_id
     where c.is_asked
), {opened}changed as (
    -- each of these is there, and locked: found by its key alone, whatever the planner believes of the table
    insert into budget_days (tenant_id, task_id, day, tokens, cost_micros, reserved_tokens, reserved_cost_micros,
                             tokens_limit, cost_micros_limit)
    select c.tenant_id, c.task_id, c.day, c.spent_tokens, c.spent_cost,
           case when f.is_reserved then c.asked_tokens else 0 end - c.back_tokens,
           case when f.is_reserved then c.asked_cost else 0 end - c.back_cost,
           case when f.is_reserved and c.is_asked then c.tokens_limit else l.tokens_limit end,
           case when f.is_reserved and c.is_asked then c.cost_limit else l.cost_micros_limit end
      from locked l
      join changes c on l.day = c.day and l.tenant_id = c.tenant_id and l.task_id = c.task_id
     cross join fit f
     where (f.is_reserved or c.is_ended) {behind}
    on conflict (tenant_id, task_id, day) do update
       set tokens = budget_days.tokens + excluded.tokens,
           cost_micros = budget_days.cost_micros + excluded.cost_micros,
           reserved_tokens = budget_days.reserved_tokens + excluded.reserved_tokens,
           reserved_cost_micros = budget_days.reserved_cost_micros + excluded.reserved_cost_micros,
           tokens_limit = excluded.tokens_limit, cost_micros_limit = excluded.cost_micros_limit
    returning tenant_id, task_id, day, tokens, cost_micros, tokens_limit, cost_micros_limit,
              warned_at is not null as is_warned
), updated as (
    select n.tenant_id, n.task_id, n.day, c.spent_tokens, c.spent_cost, n.tokens, n.cost_micros, n.tokens_limit,
           n.cost_micros_limit, n.is_warned
      from changed n
      join changes c on n.day = c.day and n.tenant_id = c.tenant_id and n.task_id = c.task_id
), reserved as (
    insert into budget_reservations (id, run_id, lease_token, tenant_id, task_id, day, tokens, cost_micros, from_seq)
    select a.id, a.run_id, a.lease_token, a.tenant_id, a.task_id, a.day, a.tokens, a.cost_micros, a.from_seq
      from asked a
     cross join fit f
     where f.is_reserved
)
