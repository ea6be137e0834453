-- A step of a pipeline calls its tool with `args`, as every other place does; what was stored said `arguments`.
-- Same number, tables and columns as migrations/sqlite/0017_tool_args.sql.

-- Row-level security would hide the rows from whoever owns them.
select set_config('reveille.tenant', '*', true);
update tasks
   set spec = jsonb_set(spec, '{action,config,steps}', coalesce((
         select jsonb_agg(
                  case
                    when step #> '{tool,arguments}' is not null
                      then jsonb_set(step #- '{tool,arguments}', '{tool,args}', step #> '{tool,arguments}')
                    when step #> '{for_each,do,tool,arguments}' is not null
                      then jsonb_set(step #- '{for_each,do,tool,arguments}', '{for_each,do,tool,args}',
                                     step #> '{for_each,do,tool,arguments}')
                    else step
                  end order by place)
           from jsonb_array_elements(spec #> '{action,config,steps}') with ordinality as listed (step, place)), '[]'))
 where spec ->> 'executor' = 'pipeline'
   and jsonb_typeof(spec #> '{action,config,steps}') = 'array';
