-- A step of a pipeline calls its tool with `args`, as every other place does; what was stored said `arguments`.
-- Same number, tables and columns as migrations/postgres/0017_tool_args.sql.

update tasks
   set spec = json_set(spec, '$.action.config.steps', json((
         select json_group_array(json(
                  case
                    when json_type(value, '$.tool.arguments') is not null
                      then json_remove(json_set(value, '$.tool.args', json(value -> '$.tool.arguments')),
                                       '$.tool.arguments')
                    when json_type(value, '$.for_each.do.tool.arguments') is not null
                      then json_remove(json_set(value, '$.for_each.do.tool.args',
                                                json(value -> '$.for_each.do.tool.arguments')),
                                       '$.for_each.do.tool.arguments')
                    else value
                  end) order by key)
           from json_each(spec, '$.action.config.steps'))))
 where json_extract(spec, '$.executor') = 'pipeline'
   and json_type(spec, '$.action.config.steps') = 'array';
