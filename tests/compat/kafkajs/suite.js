// What a program with kafkajs does to a broker. Topics are named after their checks.
'use strict'

const assert = require('node:assert')
const { randomBytes } = require('node:crypto')
const { AclOperationTypes, AclPermissionTypes, AclResourceTypes, ConfigResourceTypes, Kafka, logLevel,
  PartitionAssigners, ResourcePatternTypes } = require('kafkajs')
const { run, until } = require('./harness')
const { install } = require('./codecs')

const RUN = `kafkajs-${randomBytes(4).toString('hex')}`
const TIME_MS = Date.now() - 60_000 // of long ago they would be expired
const KEPT = { 'retention.ms': '-1' } // for records with times of long ago

const kafka = new Kafka({
  clientId: 'lapse-compat',
  brokers: [process.argv[2]],
  logLevel: logLevel.NOTHING,
  connectionTimeout: 2000,
  retry: { initialRetryTime: 50, retries: 4 },
})
const admin = kafka.admin()

/** A topic of a check's own. */
async function topicFor(name, partitions = 1, settings = {}) {
  const topic = `${RUN}-${name}`
  const configEntries = Object.entries(settings).map(([key, value]) => ({ name: key, value }))
  await admin.createTopics({ topics: [{ topic, numPartitions: partitions, configEntries }] })
  return topic
}

/** What a group has committed. FINDINGS: at first kafkajs may know no partition to ask for. */
const committed = (groupId, topic) => until(async () => {
  const [found] = await admin.fetchOffsets({ groupId, topics: [topic] })
  return found && found.partitions.length ? found.partitions : null
})

/** Does something with a connected producer. */
async function producing(settings, action) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...settings })
  await producer.connect()
  try {
    return await action(producer)
  } finally {
    await producer.disconnect()
  }
}

/** A member of a group that is subscribed and running; `took` is told each message. */
async function member(groupId, topic, took = () => {}, settings = {}) {
  const consumer = kafka.consumer({
    groupId, sessionTimeout: 6000, rebalanceTimeout: 10000, heartbeatInterval: 200, maxWaitTimeInMs: 200,
    partitionAssigners: [PartitionAssigners.roundRobin], ...settings,
  })
  const seen = { consumer, partitions: [] }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    seen.partitions = payload.memberAssignment[topic] || []
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ autoCommit: false, eachMessage: async ({ partition, message }) => took(message, partition) })
  return seen
}

/** The first `count` messages of a topic, for a reader of its own group. */
async function read(topic, count, settings = {}) {
  const messages = []
  const { consumer } = await member(`${topic}-reader`, topic, message => messages.push(message), settings)
  try {
    await until(() => messages.length >= count)
    assert.strictEqual(messages.length, count, 'more came than was sent')
    return messages
  } finally {
    await consumer.disconnect()
  }
}

const values = messages => messages.map(({ value }) => String(value))
const numbered = (count, prefix = 'value') => Array.from({ length: count }, (_, n) => `${prefix}-${n}`)
const sent = texts => texts.map(value => ({ value }))

/** That a promise is refused with Kafka's error. */
const refused = (promise, type) => assert.rejects(promise, error => {
  const inner = error.errors ? error.errors[0] : error
  assert.strictEqual((inner.cause || inner).type || inner.type, type, `${inner.name}: ${inner.message}`)
  return true
})

const PAIRS = [
  { key: 'k', value: 'v' }, { key: null, value: 'only a value' }, { key: 'only a key', value: null },
  { key: '', value: '' }, { key: 'ü', value: 'x'.repeat(5000) },
]

async function roundTrip(name, compression) {
  const topic = await topicFor(`codec-${name}`, 1, KEPT)
  const messages = PAIRS.map((pair, n) => ({
    ...pair, timestamp: String(TIME_MS + n), headers: { n: String(n), empty: '', twice: ['a', 'b'] },
  }))
  await producing({}, producer => producer.send({ topic, compression, messages }))
  const got = await read(topic, messages.length)
  const text = bytes => (bytes === null ? null : String(bytes))
  assert.deepStrictEqual(got.map(({ key, value }) => ({ key: text(key), value: text(value) })), PAIRS)
  got.forEach((message, n) => {
    assert.strictEqual(message.offset, String(n))
    assert.strictEqual(message.timestamp, String(TIME_MS + n))
    assert.strictEqual(String(message.headers.n), String(n))
    assert.strictEqual(String(message.headers.empty), '')
    assert.deepStrictEqual(message.headers.twice.map(String), ['a', 'b'])
  })
}

const first = {
  async describe_cluster() {
    await admin.connect()
    const { brokers, controller, clusterId } = await admin.describeCluster()
    assert.strictEqual(clusterId.length, 22)
    assert.deepStrictEqual(brokers.map(({ nodeId }) => nodeId), [controller])
    assert.strictEqual(`${brokers[0].host}:${brokers[0].port}`, process.argv[2])
  },
}

const writing = {
  async idempotent() {
    const topic = await topicFor('idempotent', 2)
    await producing({ idempotent: true, maxInFlightRequests: 1 }, async producer => {
      for (let n = 0; n < 5; n += 1) await producer.send({ topic, messages: sent(numbered(20, `b${n}`)) })
    })
    assert.strictEqual(new Set(values(await read(topic, 100))).size, 100)
  },
  async transaction_commit_and_abort() {
    const topic = await topicFor('transaction')
    await producing({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true }, async producer => {
      for (const [name, end] of [['gone', 'abort'], ['kept', 'commit'], ['gone', 'abort']]) {
        const transaction = await producer.transaction()
        await transaction.send({ topic, messages: sent(numbered(10, name)) })
        await transaction[end]()
      }
      await producer.send({ topic, messages: sent(['last']) })
    })
    assert.deepStrictEqual(values(await read(topic, 11)), [...numbered(10, 'kept'), 'last'])
    const all = await read(topic, 31, { readUncommitted: true, groupId: `${topic}-uncommitted` })
    assert.strictEqual(values(all).filter(value => value.startsWith('gone')).length, 20)
  },
  async transaction_sends_offsets() {
    const topic = await topicFor('offsets-in-transaction')
    const consumerGroupId = `${topic}-group`
    const commit = offset => ({ consumerGroupId, topics: [{ topic, partitions: [{ partition: 0, offset }] }] })
    await producing({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true }, async producer => {
      for (const [offset, end] of [['3', 'commit'], ['7', 'abort']]) {
        const transaction = await producer.transaction()
        await transaction.send({ topic, messages: sent([offset]) })
        await transaction.sendOffsets(commit(offset))
        await transaction[end]()
      }
    })
    const partitions = await committed(consumerGroupId, topic)
    assert.strictEqual(partitions[0].offset, '3')
  },
  async transactional_id_fences() {
    const topic = await topicFor('fenced')
    const settings = { transactionalId: topic, maxInFlightRequests: 1, idempotent: true }
    await producing(settings, async older => {
      const transaction = await older.transaction()
      await transaction.send({ topic, messages: sent(['gone']) })
      await producing(settings, async newer => {
        const another = await newer.transaction()
        await another.send({ topic, messages: sent(['kept']) })
        await another.commit()
      })
      await assert.rejects(transaction.commit(), /epoch|fenced/i)
    })
    assert.deepStrictEqual(values(await read(topic, 1)), ['kept'])
  },
  async large_message_is_refused() {
    const topic = await topicFor('large', 1, { 'max.message.bytes': '1000' })
    await producing({}, async producer => {
      const messages = [{ value: randomBytes(5000) }]
      await refused(producer.send({ topic, messages }), 'MESSAGE_TOO_LARGE')
      await producer.send({ topic, messages: sent(['small']) })
    })
  },
  async unknown_topic_is_refused() {
    await producing({}, producer =>
      refused(producer.send({ topic: `${RUN}-missing`, messages: sent(['v']) }), 'UNKNOWN_TOPIC_OR_PARTITION'))
    await refused(admin.fetchTopicMetadata({ topics: [`${RUN}-missing`] }), 'UNKNOWN_TOPIC_OR_PARTITION')
  },
}

const groups = { // the slowest first
  async offsets_are_set_and_groups_listed_and_deleted() {
    const topic = await topicFor('listed')
    const groupId = `${topic}-group`
    await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '0' }] })
    const { groups: listed } = await admin.listGroups()
    assert.ok(listed.some(group => group.groupId === groupId && group.protocolType === 'consumer'))
    const partitions = await committed(groupId, topic)
    assert.strictEqual(partitions[0].offset, '0')
    const [deleted] = await admin.deleteGroups([groupId])
    assert.strictEqual(deleted.errorCode || 0, 0)
    assert.ok(!(await admin.listGroups()).groups.some(group => group.groupId === groupId))
  },
  async members_share_and_one_leaves() {
    const topic = await topicFor('shared', 4)
    const took = new Set()
    const take = message => took.add(String(message.value))
    const one = await member(`${topic}-group`, topic, take)
    const two = await member(`${topic}-group`, topic, take)
    const held = () => [one, two].map(({ partitions }) => partitions.length)
    try {
      await until(() => held().join() === '2,2')
      assert.deepStrictEqual([...one.partitions, ...two.partitions].sort(), [0, 1, 2, 3])
      const { groups: [described] } = await admin.describeGroups([`${topic}-group`])
      assert.strictEqual(described.state, 'Stable')
      assert.strictEqual(described.members.length, 2)
      assert.strictEqual(described.protocol, 'RoundRobinAssigner')
      await two.consumer.disconnect()
      await until(() => one.partitions.length === 4)
      await producing({}, producer => producer.send({
        topic, messages: numbered(40).map((value, n) => ({ value, partition: n % 4 })),
      }))
      await until(() => took.size === 40)
    } finally {
      await one.consumer.disconnect()
      await two.consumer.disconnect()
    }
  },
  async committed_offsets_are_where_the_next_goes_on() {
    const topic = await topicFor('committed')
    const groupId = `${topic}-group`
    await producing({}, producer => producer.send({ topic, messages: sent(numbered(10)) }))
    const before = []
    const one = await member(groupId, topic, message => before.push(message))
    await until(() => before.length === 10)
    await one.consumer.commitOffsets([{ topic, partition: 0, offset: '6', metadata: 'six' }])
    await one.consumer.disconnect()
    const [{ offset, metadata }] = await committed(groupId, topic)
    assert.deepStrictEqual([offset, metadata], ['6', 'six'])
    const after = []
    const two = await member(groupId, topic, message => after.push(message))
    await until(() => after.length === 4)
    await two.consumer.disconnect()
    assert.deepStrictEqual(values(after), numbered(10).slice(6))
  },
}

const administration = {
  async topics_are_created_and_deleted() {
    const topic = await topicFor('created', 3, { 'cleanup.policy': 'compact' })
    const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] })
    assert.deepStrictEqual(described.partitions.map(({ partitionId }) => partitionId).sort(), [0, 1, 2])
    assert.strictEqual(await admin.createTopics({ topics: [{ topic }] }), false, 'it is there already')
    const topics = [{ topic: `${RUN}-bad`, configEntries: [{ name: 'cleanup.policy', value: 'shred' }] }]
    await refused(admin.createTopics({ topics }), 'INVALID_CONFIG')
    await admin.deleteTopics({ topics: [topic] })
    await until(async () => !(await admin.listTopics()).includes(topic))
  },
  async partitions_are_added() {
    const topic = await topicFor('grown')
    await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
    const partitions = await until(async () => {
      const { topics: [{ partitions: found }] } = await admin.fetchTopicMetadata({ topics: [topic] })
      return found.length === 4 && found
    })
    assert.ok(partitions.every(({ partitionErrorCode }) => partitionErrorCode === 0))
    await refused(admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] }), 'INVALID_PARTITIONS')
  },
  async settings_are_described_and_replaced() {
    const topic = await topicFor('settings', 1, { 'retention.ms': '1000000' })
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    const described = async name => {
      const { resources: [{ configEntries }] } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
      return configEntries.find(({ configName }) => configName === name)
    }
    assert.strictEqual((await described('retention.ms')).configValue, '1000000')
    assert.strictEqual((await described('retention.ms')).isDefault, false)
    const configEntries = [{ name: 'segment.ms', value: '700000' }]
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] })
    await until(async () => (await described('segment.ms')).configValue === '700000')
    assert.strictEqual((await described('retention.ms')).isDefault, true, 'AlterConfigs replaces all')
    const bad = [{ name: 'retention.ms', value: 'soon' }]
    await refused(admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: bad }] }), 'INVALID_CONFIG')
  },
  async records_are_deleted() {
    const topic = await topicFor('trimmed')
    await producing({}, producer => producer.send({ topic, messages: sent(numbered(10)) }))
    await admin.fetchTopicOffsets(topic) // FINDINGS: without it kafkajs knows no leader yet
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
    await assert.rejects(
      admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '11' }] }),
      error => error.cause.partitions[0].error.type === 'OFFSET_OUT_OF_RANGE')
    const [{ low, high }] = await admin.fetchTopicOffsets(topic)
    assert.deepStrictEqual([low, high], ['4', '10'])
    assert.deepStrictEqual(values(await read(topic, 6)), numbered(10).slice(4))
  },
  async offsets_by_time() {
    const topic = await topicFor('by-time', 1, KEPT)
    await producing({}, producer => producer.send({
      topic, messages: numbered(10).map((value, n) => ({ value, timestamp: String(TIME_MS + 10 * n) })),
    }))
    const at = async time => (await admin.fetchTopicOffsetsByTimestamp(topic, time))[0].offset
    assert.strictEqual(await at(TIME_MS + 35), '4')
    assert.strictEqual(await at(TIME_MS + 1000), '10', 'after the last one: the end')
  },
  async acls_need_an_authorizer() {
    const acl = {
      resourceType: AclResourceTypes.TOPIC, resourceName: RUN, resourcePatternType: ResourcePatternTypes.LITERAL,
      principal: 'User:somebody', host: '*', operation: AclOperationTypes.READ, permissionType: AclPermissionTypes.ALLOW,
    }
    await refused(admin.createAcls({ acl: [acl] }), 'SECURITY_DISABLED')
    await refused(admin.describeAcls(acl), 'SECURITY_DISABLED')
  },
}

async function main() {
  const codecs = Object.entries(await install()).map(
    ([name, type]) => [`produce_and_consume_${name}`, () => roundTrip(name, type)])
  return run(first, { ...groups, ...Object.fromEntries(codecs), ...writing, ...administration })
}

main().then(failed => process.exit(failed ? 1 : 0))
