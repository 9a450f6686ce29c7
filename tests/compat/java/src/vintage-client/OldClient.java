import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * What one version of the Java clients does, asked for in Java's own types: each version is loaded
 * beside the others. Compiled with 0.10.2.2; calls that changed since 0.9 go by their names.
 */
public final class OldClient {
    private static final int POLL_MS = 200;
    private static final int READ_MS_MAX = 30_000;
    private static final String STRING = "org.apache.kafka.common.serialization.String";

    private final Map<String, Object> settings;

    public OldClient(Map<String, Object> settings) {
        this.settings = settings;
    }

    /** Sends `PREFIX 0` and so on, all in one batch if linger allows; their offsets. */
    public List<Long> send(String topic, Integer partition, String codec, String prefix,
            Integer count) throws Exception {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("key.serializer", STRING + "Serializer");
        all.put("value.serializer", STRING + "Serializer");
        all.put("compression.type", codec);
        all.put("acks", "all");
        all.put("linger.ms", 50);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(all)) {
            for (int i = 0; i < count; i++) {
                sent.add(producer.send(
                    new ProducerRecord<>(topic, partition, "k" + i, prefix + " " + i)));
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
        return offsets;
    }

    /** A transaction that is aborted, one that is committed: `aborted 0`, `committed 0` and so on. */
    public void transactions(String topic, Integer partition, String id, Integer count)
            throws Exception {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("key.serializer", STRING + "Serializer");
        all.put("value.serializer", STRING + "Serializer");
        all.put("transactional.id", id);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(all)) {
            byName(producer, "initTransactions");
            for (String end : new String[] {"abort", "commit"}) {
                byName(producer, "beginTransaction");
                for (int i = 0; i < count; i++) {
                    String value = (end.equals("abort") ? "aborted " : "committed ") + i;
                    producer.send(new ProducerRecord<>(topic, partition, "k" + i, value));
                }
                producer.flush();
                byName(producer, end + "Transaction");
            }
        }
    }

    /** A member of a group reads so many records, commits and leaves: `PARTITION/OFFSET VALUE`. */
    public List<String> group(String topic, String group, Integer count) throws Exception {
        List<String> got = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            byName(consumer, "subscribe", Collections.singletonList(topic));
            long end = System.currentTimeMillis() + READ_MS_MAX;
            while (got.size() < count && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL_MS)) {
                    got.add(record.partition() + "/" + record.offset() + " " + record.value());
                }
            }
            consumer.commitSync();
        }
        Collections.sort(got);
        return got;
    }

    /** The member's partitions, again with every call; null leaves the group. */
    public Supplier<Set<Integer>> member(String topic, String group, Supplier<Boolean> goesOn)
            throws Exception {
        KafkaConsumer<String, String> consumer = consumer(group);
        byName(consumer, "subscribe", Collections.singletonList(topic));
        return () -> {
            if (!goesOn.get()) {
                consumer.close();
                return null;
            }
            consumer.poll(POLL_MS);
            Set<Integer> mine = new TreeSet<>();
            for (TopicPartition partition : consumer.assignment()) {
                mine.add(partition.partition());
            }
            return mine;
        };
    }

    /** Where a partition begins and ends, as a consumer finds them. */
    public List<Long> ends(String topic, Integer partition) throws Exception {
        TopicPartition where = new TopicPartition(topic, partition);
        List<Long> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(null)) {
            byName(consumer, "assign", Collections.singletonList(where));
            for (String to : new String[] {"seekToBeginning", "seekToEnd"}) {
                byName(consumer, to, Collections.singletonList(where));
                found.add(consumer.position(where));
            }
        }
        return found;
    }

    /** `OFFSET TIME` of the first record at or after a time, null if there is none; from 0.10.1. */
    public String atTime(String topic, Integer partition, Long ms) {
        return Times.find(this, new TopicPartition(topic, partition), ms);
    }

    /** Apart, since 0.9 has no such classes. */
    private static final class Times {
        static String find(OldClient client, TopicPartition where, long ms) {
            try (KafkaConsumer<String, String> consumer = client.consumer(null)) {
                OffsetAndTimestamp found =
                    consumer.offsetsForTimes(Collections.singletonMap(where, ms)).get(where);
                return found == null ? null : found.offset() + " " + found.timestamp();
            }
        }
    }

    private KafkaConsumer<String, String> consumer(String group) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("key.deserializer", STRING + "Deserializer");
        all.put("value.deserializer", STRING + "Deserializer");
        all.put("group.id", group == null ? "none" : group);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.put("isolation.level", "read_committed"); // nothing to clients from before 0.11
        all.put("heartbeat.interval.ms", 200);
        all.put("session.timeout.ms", 10_000);
        return new KafkaConsumer<>(all);
    }

    /** What came with 0.11. */
    private static void byName(Object target, String name) throws Exception {
        target.getClass().getMethod(name).invoke(target);
    }

    /** 0.9 wants a List or an array where later ones take any Collection. */
    private static void byName(Object target, String name, List<?> argument) throws Exception {
        for (java.lang.reflect.Method method : target.getClass().getMethods()) {
            Class<?>[] kinds = method.getParameterTypes();
            if (!method.getName().equals(name) || kinds.length != 1) {
                continue;
            }
            if (kinds[0].isInstance(argument)) {
                method.invoke(target, argument);
                return;
            }
            if (kinds[0] == TopicPartition[].class) {
                method.invoke(target, (Object) argument.toArray(new TopicPartition[0]));
                return;
            }
        }
        throw new NoSuchMethodException(name);
    }
}
