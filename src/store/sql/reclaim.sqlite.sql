update queue set state = 'ready', lease_token = 0, lease_until = null, worker = null
 where state = 'claimed' and lease_until < $1
