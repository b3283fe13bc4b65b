-- master.lua: the part that scripts of a quorum add to record.lua: whether this master counts. No
-- master knows of the others; quorum.rs decides what their answers mean together. There is no queue
-- and no wake.
--
-- Every reply begins with: what, now us, run id. Two masters with the same run id are one server.

-- Without the permission for INFO this is an error, and the uptime stays unknown.
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end

local server = info('server')
local run_id = string.match(server, 'run_id:(%x+)') or ''

local function answer(what, ...) return { what, int(us), run_id, ... } end

-- Why this master does not count; nil if it does. If it has been up for less than the longest
-- lease, it may have forgotten a lock that is still held. The uptime is the difference of two times
-- cut to seconds, so it may be one second too long.
local function unfit(longest)
  local role = string.match(info('replication'), 'role:(%a+)')
  local uptime = tonumber(string.match(server, 'uptime_in_seconds:(%-?%d+)'))
  if role and role ~= 'master' then return answer('replica') end
  if run_id == '' or not role or not uptime then return answer('ageless') end
  local missing = longest - (uptime - 1) * 1000
  if missing > 0 then return answer('young', int(missing)) end
end

-- FENCE is the last fence of a majority that this master knows of.
local function remember_fence(lock, fence)
  write_fence(lock, math.max(last_fence(lock), tonumber(fence)))
end

-- The fence of the majority for this hold; '0' if this master was not told yet.
local function agreed(hold) return hold.confirmed and hold.fence or '0' end

-- The token of the holder, then what blocks a caller.
local function obstacle(lock) return lock.token or '', unpack(blocker(lock, 'exclusive')) end
