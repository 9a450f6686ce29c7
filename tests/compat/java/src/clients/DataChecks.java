import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Records there and back: codecs, idempotence, transactions, times. */
final class DataChecks {
    private static final int COUNT = 500;

    private final ClientChecks at;

    DataChecks(ClientChecks at) {
        this.at = at;
    }

    void run() {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            at.checks.check("idempotent-" + codec, () -> thereAndBack("compressed-" + codec,
                "compression.type", codec, "linger.ms", 5));
        }
        at.checks.check("not-idempotent", () -> thereAndBack("plain",
            "enable.idempotence", false, "acks", "1"));
        at.checks.check("acks-0", () -> {
            String topic = at.topic("unacknowledged", 1);
            try (KafkaProducer<String, String> producer = producer(
                    "enable.idempotence", false, "acks", "0")) {
                Checks.equal(-1L, producer.send(record(topic, 0)).get().offset());
            }
            Checks.equal(1, read(topic, "read_uncommitted").size());
        });
        at.checks.check("tombstones-on-a-compacted-topic", () -> {
            String topic = at.topic("compacted", 1, Map.of("cleanup.policy", "compact"));
            try (KafkaProducer<String, String> producer = producer()) {
                producer.send(new ProducerRecord<>(topic, "k", "v")).get();
                producer.send(new ProducerRecord<>(topic, "k", null)).get();
                Checks.fails(org.apache.kafka.common.InvalidRecordException.class,
                    () -> producer.send(new ProducerRecord<>(topic, null, "keyless")).get());
            }
            Checks.equal(Arrays.asList("v", null), values(topic, "read_committed"));
        });
        at.checks.check("too-large", () -> {
            String topic = at.topic("small", 1, Map.of("max.message.bytes", "1000"));
            try (KafkaProducer<String, String> producer = producer()) {
                Checks.fails(RecordTooLargeException.class, () -> producer.send(
                    new ProducerRecord<>(topic, "x".repeat(2000))).get());
                producer.send(new ProducerRecord<>(topic, "x")).get();
            }
        });
        at.checks.check("by-time", this::byTime);
        at.checks.check("log-append-time", () -> {
            String topic = at.topic("stamped", 1,
                Map.of("message.timestamp.type", "LogAppendTime"));
            long before = System.currentTimeMillis();
            try (KafkaProducer<String, String> producer = producer()) {
                RecordMetadata told = producer.send(record(topic, 0)).get();
                Checks.that(told.timestamp() >= before, told.timestamp());
                Checks.equal(told.timestamp(), read(topic, "read_committed").get(0).timestamp());
            }
        });
        at.checks.check("transactions", this::transactions);
        at.checks.check("fenced", this::fenced);
        at.checks.check("consume-transform-produce", this::consumeTransformProduce);
    }

    private KafkaProducer<String, String> producer(Object... settings) {
        StringSerializer text = new StringSerializer();
        return new KafkaProducer<>(Checks.settings(at.server, settings), text, text);
    }

    private KafkaConsumer<String, String> consumer(Object... settings) {
        Properties all = Checks.settings(at.server, settings);
        all.put("enable.auto.commit", false);
        all.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    private static ProducerRecord<String, String> record(String topic, int n) {
        String key = n % 7 == 0 ? null : "key" + n;
        String value = n % 11 == 10 ? null : "value " + n + " ".repeat(n % 50);
        ProducerRecord<String, String> made =
            new ProducerRecord<>(topic, 0, 1_600_000_000_000L + n, key, value);
        made.headers().add("n", ("" + n).getBytes(StandardCharsets.UTF_8));
        made.headers().add("none", null);
        return made;
    }

    private void thereAndBack(String name, Object... settings) throws Exception {
        String topic = at.topic(name, 1);
        try (KafkaProducer<String, String> producer = producer(settings)) {
            IntStream.range(0, COUNT).forEach(n -> producer.send(record(topic, n)));
        }
        List<ConsumerRecord<String, String>> seen = read(topic, "read_committed");
        Checks.equal(COUNT, seen.size());
        for (ConsumerRecord<String, String> r : seen) {
            ProducerRecord<String, String> sent = record(topic, (int) r.offset());
            Checks.equal(sent.key(), r.key());
            Checks.equal(sent.value(), r.value());
            Checks.equal(sent.timestamp(), r.timestamp());
            Header[] headers = r.headers().toArray();
            Checks.equal(2, headers.length);
            Checks.equal("" + r.offset(), new String(headers[0].value(), StandardCharsets.UTF_8));
            Checks.equal(null, headers[1].value());
        }
    }

    private List<ConsumerRecord<String, String>> read(String topic, String level) throws Exception {
        List<ConsumerRecord<String, String>> seen = new ArrayList<>();
        TopicPartition whole = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", level)) {
            consumer.assign(List.of(whole));
            consumer.seekToBeginning(List.of(whole));
            long end = consumer.endOffsets(List.of(whole)).get(whole);
            Checks.until("the end of " + topic, () -> {
                consumer.poll(Duration.ofMillis(100)).forEach(seen::add);
                return consumer.position(whole) >= end;
            });
        }
        return seen;
    }

    private List<String> values(String topic, String level) throws Exception {
        return new ArrayList<>(read(topic, level).stream()
            .collect(ArrayList::new, (all, r) -> all.add(r.value()), ArrayList::addAll));
    }

    private void byTime() throws Exception {
        String topic = at.topic("timed", 2);
        try (KafkaProducer<String, String> producer = producer()) {
            IntStream.range(0, 20).forEach(
                n -> producer.send(new ProducerRecord<>(topic, 0, 1000L * n + 1, "k", "v")));
        }
        TopicPartition full = new TopicPartition(topic, 0);
        TopicPartition empty = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> consumer = consumer()) {
            Map<TopicPartition, OffsetAndTimestamp> found =
                consumer.offsetsForTimes(Map.of(full, 5000L, empty, 0L));
            Checks.equal(5L, found.get(full).offset());
            Checks.equal(5001L, found.get(full).timestamp());
            Checks.equal(null, found.get(empty));
            Checks.equal(null, consumer.offsetsForTimes(Map.of(full, 99_000L)).get(full));
            Checks.equal(Map.of(full, 0L, empty, 0L), consumer.beginningOffsets(List.of(full, empty)));
            Checks.equal(Map.of(full, 20L, empty, 0L), consumer.endOffsets(List.of(full, empty)));
        }
    }

    private void transactions() throws Exception {
        String topic = at.topic("transactional", 1);
        try (KafkaProducer<String, String> producer = producer(
                "transactional.id", topic, "compression.type", "zstd")) {
            producer.initTransactions();
            for (int n = 0; n < 4; n++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "k", "v" + n)).get();
                if (n % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "open")).get();
            Checks.equal(List.of("v0", "v2"), values(topic, "read_committed"));
            Checks.equal(List.of("v0", "v1", "v2", "v3", "open"),
                values(topic, "read_uncommitted"));
            producer.commitTransaction();
        }
        Checks.equal(List.of("v0", "v2", "open"), values(topic, "read_committed"));
    }

    private void fenced() throws Exception {
        String topic = at.topic("fenced", 1);
        try (KafkaProducer<String, String> old = producer("transactional.id", topic);
                KafkaProducer<String, String> young = producer("transactional.id", topic)) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>(topic, "k", "old")).get();
            young.initTransactions();
            young.beginTransaction();
            young.send(new ProducerRecord<>(topic, "k", "young")).get();
            young.commitTransaction();
            Checks.fails(ProducerFencedException.class, old::commitTransaction);
        }
        Checks.equal(List.of("young"), values(topic, "read_committed"));
    }

    private void consumeTransformProduce() throws Exception {
        String from = at.topic("from", 1);
        String to = at.topic("to", 1);
        try (KafkaProducer<String, String> producer = producer()) {
            IntStream.range(0, 100).forEach(n -> producer.send(
                new ProducerRecord<>(from, "k", "" + n)));
        }
        TopicPartition source = new TopicPartition(from, 0);
        try (KafkaConsumer<String, String> consumer = consumer("group.id", from,
                    "isolation.level", "read_committed", "max.poll.records", 10);
                KafkaProducer<String, String> producer = producer("transactional.id", from)) {
            producer.initTransactions();
            consumer.subscribe(List.of(from));
            int[] transactions = {0};
            Checks.until("all copied", () -> {
                List<ConsumerRecord<String, String>> some = new ArrayList<>();
                consumer.poll(Duration.ofMillis(100)).forEach(some::add);
                if (some.isEmpty()) {
                    return false;
                }
                producer.beginTransaction();
                some.forEach(r -> producer.send(new ProducerRecord<>(to, r.key(), r.value())));
                long next = some.get(some.size() - 1).offset() + 1;
                producer.sendOffsetsToTransaction(Map.of(source, new OffsetAndMetadata(next)),
                    consumer.groupMetadata());
                if (++transactions[0] % 3 == 0) {
                    producer.abortTransaction();
                    consumer.seek(source, some.get(0).offset());
                    return false;
                }
                producer.commitTransaction();
                return next == 100;
            });
            Checks.equal(100L, consumer.committed(java.util.Set.of(source)).get(source).offset());
        }
        Checks.equal(IntStream.range(0, 100).mapToObj(n -> "" + n).toList(),
            values(to, "read_committed"));
    }
}
