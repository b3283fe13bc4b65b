-- leave.lua: gives this master back: for good, or for another attempt later.
-- ARGV: token, 'not-run', 'refused' (it did not wait), 'superseded-waiting' (a newer run superseded it) or
--        how the hold ended (released, crashed, …), how the job ended (JSON or ''), 'for-good' or
--        the attempt that failed, longest lease ms, and '1' if the lock was acquired with
--        --once-per (for a hold that ran).
-- Replies: {'released', …, cooling ms} · {'already', …} · {'not-held', …}; for a hold that ran and
--        that this master does not know, also those of acquire.lua for a master that does not
--        count: it may have forgotten the hold, and has granted the lock to nobody since. (If the
--        record names another holder, that was granted the lock before the restart, so the hold was
--        lost.)
-- Why atomic: compare and delete. For good, the token is recorded as released, and a late acquire
-- is refused (I4). A failed attempt takes back only itself and earlier attempts: on a connection of
-- its own it may arrive after the next attempt of the same token was granted and counted here.

local token, outcome, job, attempt = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local ran = outcome ~= 'not-run' and outcome ~= 'refused' and outcome ~= 'superseded-waiting'
write_first()
local lock = named(token)[1]
expire(lock)
local function unknown() return ran and lock.kind == 'free' and unfit(tonumber(ARGV[5])) or answer('not-held') end
local spent = redis.call('GET', spent_key(lock, token))
if spent then return spent == '1' and answer('already') or unknown() end

local what, cooling = 'not-held', 0
if is_held_by(lock, token) then
  local since = hold_of(lock, token).attempt
  if not attempt or since and since <= attempt then
    what = 'released'
    if ran then cooling = close(lock, token, outcome, job, ARGV[6] == '1') else drop_hold(lock, token) end
  end
elseif is_revoked_from(lock, token) then
  what = 'released'
  drop_hold(lock, token)
end
if outcome == 'refused' then tally(lock, { busy = 1 }) end
if outcome == 'superseded-waiting' then tally(lock, { superseded = 1 }) end
if not attempt then
  local has_waited = forget_turn(lock, token)
  if has_waited and outcome == 'not-run' and what == 'not-held' then tally(lock, { ['given-up'] = 1 }) end
  spend(lock, token, what == 'released' and '1' or '0')
end
return what == 'not-held' and unknown() or answer(what, int(cooling))
