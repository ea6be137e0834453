with mine as (
    select q.run_id
      from queue q
      join unnest($1::uuid[], $2::bigint[]) as l (run_id, lease_token)
        on q.run_id = any (array[l.run_id]) and q.lease_token = l.lease_token
     order by l.run_id
       for update of q
)
update queue q
   set lease_until = $3
  from mine
 where q.run_id = any (array[mine.run_id])
returning q.run_id, q.cancel_reason
