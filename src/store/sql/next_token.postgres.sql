select nextval('lease_tokens')
