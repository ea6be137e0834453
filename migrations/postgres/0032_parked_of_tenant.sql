-- The runs of a tenant that wait beside the queue, for lists by state and for its figures.
create index parked_of_tenant on parked (tenant_id, run_id);
