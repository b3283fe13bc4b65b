-- acquire.lua: acquire, a waiter's heartbeat, and the confirmation of a grant (law: Record::acquire).
-- ARGV: token, ttl ms, min-hold ms, patience ('none' or 'queue'), connection to wake, 'first' or 'again', owner.
-- Replies: {'granted', now us, fence, waited ms} · {'waiting', now us, ahead, next ms, blocker…}
--          {'busy', now us, blocker…} · {'spent', now us}.
-- Why atomic: between seeing the lock free and taking it nobody may come in between, and a newcomer must not overtake.

local token, ttl, min_hold, patience, connection, owner =
  ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[7]

-- A first acquire may be refused by a server that is out of memory: no job runs yet.
if ARGV[6] ~= 'first' then write_first() end

local function hear()
  local key = waiter_key(token)
  local ticket = redis.call('HGET', key, 'ticket')
  if not ticket then
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
    ticket = int(math.max(us, last and last + 1 or 0))
    redis.call('HSET', key, 'ticket', ticket, 'since', int(us), 'owner', owner)
  end
  redis.call('HSET', key, 'silent', int(ms + SILENCE), 'wake', connection)
  redis.call('PEXPIRE', key, TICKET_KEPT)
  redis.call('ZADD', QUEUE, ticket, token)
  redis.call('PEXPIRE', QUEUE, TICKET_KEPT)
end

local function place()
  local rank = redis.call('ZRANK', QUEUE, token)
  while rank > 0 do
    local before = redis.call('ZRANGE', QUEUE, rank - 1, rank - 1)[1]
    local silent = tonumber(redis.call('HGET', waiter_key(before), 'silent') or 0)
    if silent > ms then return rank, math.min(silent - ms, HEARTBEAT) end
    redis.call('ZREM', QUEUE, before)
    rank = rank - 1
  end
  if lock == 'foreign' then return 0, FOREIGN_LOOK end
  return 0, math.min(left(lock_until), HEARTBEAT)
end

local function reply(...)
  local r = { ... }
  for _, field in ipairs(blocker()) do r[#r + 1] = field end
  return r
end

if redis.call('EXISTS', spent_key(token)) == 1 then return { 'spent', int(us) } end
load(token)
expire()
local alone = lock == 'free' and redis.call('EXISTS', QUEUE, waiter_key(token)) == 0
if not alone and not is_held_by(token) then
  if patience == 'queue' then hear() end
  serve(token)
end
-- Where nobody waits the way through the queue would lead to the same grant, with twice the commands.
if lock == 'free' then grant(token, owner, CONFIRM_WITHIN, 0) end
if is_held_by(token) then
  if not alone then
    redis.call('ZREM', QUEUE, token)
    redis.call('DEL', waiter_key(token))
  end
  hold.confirmed, hold.owner, hold['until'] = true, owner, ms + ttl
  if min_hold > 0 then hold.cool = math.floor(hold.since / 1000) + min_hold end
  save_hold()
  return { 'granted', int(us), hold.fence, hold.waited }
end
if patience == 'none' then return reply('busy', int(us)) end
local ahead, next = place()
return reply('waiting', int(us), int(ahead), int(next))
