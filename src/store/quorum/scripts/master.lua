-- master.lua: the part that scripts of a quorum add to record.lua: whether this master counts. No
-- master knows of the others; quorum.rs decides what their answers mean together. There is no queue
-- and no wake.
--
-- Every reply has the run id of the server. Two masters with the same run id are one server. Every
-- argument has `longest`: the longest lease (ms) that any client asks of these masters.

-- Without the permission for INFO this is an error, and the uptime stays unknown.
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end

local server = info('server')
run_id = string.match(server, 'run_id:(%x+)')

-- Why this master does not count, and how long; nil if it does count. If it has been up for less
-- than the longest lease, it may have forgotten a lock that is still held. The uptime is the
-- difference of two times cut to seconds, so it may be one second too long.
local function unfit()
  local role = string.match(info('replication'), 'role:(%a+)')
  local uptime = tonumber(string.match(server, 'uptime_in_seconds:(%-?%d+)'))
  if role and role ~= 'master' then return 'replica' end
  if not run_id or not role or not uptime then return 'ageless' end
  local missing = arg.longest - (uptime - 1) * 1000
  if missing > 0 then return 'young', missing end
end

-- The reply of a master that does not count; nil if it does.
local function uncounted()
  local why, counts_in = unfit()
  return why and answer(why, { counts_in = counts_in })
end

-- FENCE is the last fence of a majority that this master knows of.
local function remember_fence(lock, fence)
  write_fence(lock, math.max(last_fence(lock), tonumber(fence)))
end

-- The fence of the majority for this hold; nil if this master was not told yet.
local function agreed(hold) return hold.confirmed and hold.fence or nil end

-- Whether a hold is that of the grant with this fence. If it is not confirmed here, or under a smaller
-- fence by an earlier attempt, a late acquire may have taken this master again: after others had had
-- the lock, this master knows a greater fence.
local function is_granted(lock, hold, fence)
  if not fence then return true end
  if hold.confirmed and tonumber(hold.fence) >= tonumber(fence) then return is_of_grant(hold, fence) end
  return last_fence(lock) <= tonumber(fence)
end

-- What blocks a caller, with the token of the holder.
local function obstacle(lock)
  local b = blocker(lock, 'exclusive')
  b.token = lock.token
  return b
end
