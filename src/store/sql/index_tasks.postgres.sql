-- Puts new event tasks into the index: each gets a version of its own, and each shard is bumped past all of its tasks.
-- Shards are locked in their order.
with asked as (
    select task_id, shard, row_number() over (partition by shard order by task_id) as place
      from unnest($1::uuid[], $2::int[]) as a (task_id, shard)
), counted as (
    select shard, count(*) as tasks from asked group by shard order by shard
), bumped as (
    insert into event_index (shard, version) select shard, tasks from counted order by shard
    on conflict (shard) do update set version = event_index.version + excluded.version
    returning shard, version
)
insert into event_tasks (task_id, shard, version, live, changed_at)
select a.task_id, a.shard, b.version - c.tasks + a.place, true, $3
  from asked a join counted c on c.shard = a.shard join bumped b on b.shard = a.shard
