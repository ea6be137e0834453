-- What someone else holds right now (a start, a pause) is dealt with by them. Rows are locked in the order of their ids.
with mine as (
    select run_id from queue where worker = $1 and state = 'claimed' order by run_id for update skip locked
)
update queue q
   set state = 'ready', lease_token = 0, lease_until = null, worker = null
  from mine
 where q.run_id = mine.run_id
