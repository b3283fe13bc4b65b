-- probe.lua: whether this user may do, on this server, what the other scripts do (doctor). Not a part of the protocol.
-- KEYS: a lock key and a derived key that nobody else uses. ARGV: none.
-- Reply: {command, what the server said, …}, of what was refused.
-- Why a script: a right may be missing inside a script only, and what is tried here is gone when it ends. The keys expire
-- by themselves in any case. What is left is a list under the derived key, for a BLPOP to take.

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
