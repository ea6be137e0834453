-- A claim that is being started, late, is left to whoever does. Rows are locked in the order of their ids.
with expired as (
    select run_id from queue where state = 'claimed' and lease_until < $1 order by run_id for update skip locked
)
update queue q
   set state = 'ready', lease_token = 0, lease_until = null, worker = null
  from expired
 where q.run_id = any (array[expired.run_id])
