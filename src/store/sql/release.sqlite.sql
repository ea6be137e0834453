update queue set state = 'ready', lease_token = 0, lease_until = null, worker = null
 where worker = $1 and state = 'claimed'
