-- probe.lua: whether this user may run on this server the commands of the other scripts (doctor).
-- Not a part of the protocol.
-- KEYS: a lock key and a derived key that nobody else uses.
-- ARGV: none.
-- Reply: {command, what the server said, …} for each refused command.
-- Why a script: a permission may be missing inside scripts only. The keys are deleted at its end
-- and expire in any case, except for a list under the derived key, which a BLPOP then takes.

local L, D = KEYS[1], KEYS[2]
local refused = {}
local function try(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = command
    refused[#refused + 1] = answer.err
  end
end

try('TIME')
try('SET', L, 'dlock/doctor', 'PX', '60000')
try('GET', L)
try('TYPE', L)
try('PTTL', L)
try('EXISTS', L)
try('PEXPIRE', L, '60000')
try('DEL', L)
try('HSET', D, 'field', 'value')
try('PEXPIRE', D, '60000')
try('HGET', D, 'field')
try('HMGET', D, 'field')
try('HGETALL', D)
try('HINCRBY', D, 'count', 1)
try('HDEL', D, 'count')
try('DEL', D)
try('ZADD', D, 1, 'a', 2, 'b', 3, 'c')
try('PEXPIRE', D, '60000')
try('ZRANK', D, 'a')
try('ZRANGE', D, 0, 0)
try('ZREVRANGE', D, 0, 0)
try('ZCARD', D)
try('ZRANGEBYSCORE', D, 1, 1)
try('ZREMRANGEBYSCORE', D, 3, 3)
try('ZREM', D, 'b')
try('DEL', D)
try('LPUSH', D, 'dlock/doctor')
try('LRANGE', D, 0, 0)
try('LTRIM', D, 0, 0)
try('PEXPIRE', D, '60000')
return refused
