import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.tests.SmokeTestClient;
import org.apache.kafka.streams.tests.SmokeTestDriver;

/**
 * Kafka Streams' own smoke test: its driver writes, its job works, its driver judges what came out.
 *
 * Only the topics that the job waits for are created, as Kafka's own harness does. "data", which the
 * driver writes to, is left to auto.create.topics.enable.
 */
final class SmokeChecks {
    private static final int KEYS = 10;
    private static final int RECORDS_PER_KEY = 100;
    private static final int PARTITIONS = 1; // as many as "data" gets
    private static final String APPLICATION = "SmokeTest"; // the driver's name for its job
    private static final Set<TopicPartition> READ = Set.of(
        new TopicPartition("data", 0), new TopicPartition(APPLICATION + "-cntByCnt-repartition", 0));
    private static final int POLL_MS = 100;
    private static final Duration WRITING = Duration.ofSeconds(5);

    private SmokeChecks() {
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(arguments[1], arguments[0]);
        checks.check("kafka-streams-finds-nothing-wrong", () -> smoke(arguments[0]));
        checks.end();
    }

    private static void smoke(String server) throws Exception {
        try (Admin admin = Admin.create(Checks.settings(server))) {
            admin.createTopics(Stream.of(SmokeTestDriver.topics()).filter(t -> !t.equals("data"))
                .map(t -> new NewTopic(t, PARTITIONS, (short) 1)).toList()).all().get();
        }
        SmokeTestClient job = new SmokeTestClient("smoke-" + UUID.randomUUID());
        Map<String, Set<Integer>> written =
            SmokeTestDriver.generate(server, KEYS, RECORDS_PER_KEY, WRITING);
        job.start(settings(server));
        try (Admin admin = Admin.create(Checks.settings(server))) {
            awaitAllConsumed(admin);
            var judged = SmokeTestDriver.verify(server, written, RECORDS_PER_KEY, true);
            Checks.that(judged.passed(), judged.result());
            Checks.that(!job.error(), "the job failed");
        } finally {
            job.close();
        }
    }

    /**
     * The driver looks up the uncommitted ends of the job's topics, then the committed ones, and
     * fails if these are further. A job that still commits between the two look-ups fails it.
     */
    private static void awaitAllConsumed(Admin admin) throws Exception {
        Map<TopicPartition, Long> consumed;
        Map<TopicPartition, Long> ends;
        do {
            Thread.sleep(POLL_MS);
            consumed = new HashMap<>();
            for (var group : admin.listConsumerGroupOffsets(APPLICATION)
                    .partitionsToOffsetAndMetadata().get().entrySet()) {
                consumed.put(group.getKey(), group.getValue().offset());
            }
            Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
            consumed.keySet().forEach(partition -> latest.put(partition, OffsetSpec.latest()));
            ends = new HashMap<>();
            for (var end : admin.listOffsets(latest).all().get().entrySet()) {
                ends.put(end.getKey(), end.getValue().offset());
            }
        } while (!consumed.keySet().containsAll(READ) || !consumed.equals(ends));
    }

    private static Properties settings(String server) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, server);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATE_DIR_CONFIG,
            Files.createTempDirectory("smoke").toString());
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return settings;
    }
}
