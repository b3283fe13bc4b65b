-- master.lua: what a script of a quorum starts with besides record.lua: whether the word of this one of the masters counts.
-- No master knows of the others; what their answers mean together is decided in quorum.rs. There is no queue and no wake.
--
-- Every reply begins: what, now us, run id. The run id tells whether two of the masters are one.

-- A user without the right to INFO gets an error here, and no age.
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end

local server = info('server')
local run_id = string.match(server, 'run_id:(%x+)') or ''

local function answer(what, ...) return { what, int(us), run_id, ... } end

-- Why this master's word does not count, if it does not. One that has been up for less than the longest lease may have
-- forgotten a lock that is still held. Both readings behind the uptime are cut to seconds: it may be one too many.
local function unfit(longest)
  local role = string.match(info('replication'), 'role:(%a+)')
  local uptime = tonumber(string.match(server, 'uptime_in_seconds:(%-?%d+)'))
  if role and role ~= 'master' then return answer('replica') end
  if run_id == '' or not role or not uptime then return answer('ageless') end
  local missing = longest - (uptime - 1) * 1000
  if missing > 0 then return answer('young', int(missing)) end
end

-- FENCE has what a quorum has agreed on, as far as this master knows.
local function remember_fence(lock, fence)
  write_fence(lock, math.max(last_fence(lock), tonumber(fence)))
end

-- The fence that the quorum has agreed on for this hold, if this master was told.
local function agreed(hold) return hold.confirmed and hold.fence or '0' end

-- What is in the way, behind whose it is.
local function obstacle(lock) return lock.token or '', unpack(blocker(lock, 'exclusive')) end
