-- leave.lua: gives this master back: for good, or for another attempt later.
-- Argument: token, outcome, job, once_per, fence, pause, as those of a single server's leave.lua; counts (the
--        total that counts a caller that did not get the lock: busy, superseded); attempt (the one
--        that failed; none if it leaves for good).
-- Replies: released {cooling (ms)} · already · not-held; for a hold that ran and that this master
--        does not know, also those of acquire.lua for a master that does not count: it may have
--        forgotten the hold, and has granted the lock to nobody since. (If the record names another
--        holder, that was granted the lock before the restart, so the hold was lost.)
-- Why atomic: compare and delete. For good, the token is recorded as released, and a late acquire
-- is refused (I4). A failed attempt takes back only itself and earlier attempts: on a connection of
-- its own it may arrive after the next attempt of the same token was granted and counted here.

local token, outcome = arg.token, arg.outcome
write_first()
local lock = named(token)[1]
expire(lock)
local function unknown() return outcome and lock.kind == 'free' and uncounted() or answer('not-held') end
local spent = redis.call('GET', spent_key(lock, token))
if spent then return spent == '1' and answer('already') or unknown() end

local what, cooling = 'not-held', 0
local is_revoked = is_revoked_from(lock, token)
local hold = (is_revoked or is_held_by(lock, token)) and hold_of(lock, token)
if hold and not is_granted(lock, hold, arg.fence) then
  drop_hold(lock, token)
elseif is_revoked then
  what = 'released'
  drop_hold(lock, token)
elseif hold then
  local since = hold.attempt
  if not arg.attempt or since and tonumber(since) <= tonumber(arg.attempt) then
    what = 'released'
    local pause = arg.pause
    if pause and pause_after(lock, hold, ms, pause.lasts, pause.reason) then write_pause(lock) end
    if outcome then cooling = close(lock, token, outcome, arg.job, arg.once_per) else drop_hold(lock, token) end
  end
end
if arg.counts then tally(lock, { [arg.counts] = 1 }) end
if not arg.attempt then
  local has_waited = forget_turn(lock, token)
  if has_waited and not outcome and not arg.counts and what == 'not-held' then tally(lock, { ['given-up'] = 1 }) end
  spend(lock, token, what == 'released' and '1' or '0')
end
return what == 'not-held' and unknown() or answer(what, { cooling = cooling })
