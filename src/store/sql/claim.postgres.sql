with picked as (
    select run_id
      from queue
     where state = 'ready' and run_at <= $1
     order by priority desc, run_at
     limit $2
       for update skip locked
)
update queue q
   set state = 'claimed', lease_token = nextval('lease_tokens'), lease_until = $3, worker = $4
  from picked
 where q.run_id = picked.run_id
returning q.run_id, q.lease_token, q.run_at
