import java.io.File;
import java.nio.file.Files;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A Streams job that counts words exactly once, killed with -9 while words come.
 *
 * What goes out for a word must be 1, 2, 3 … up to how often it was written, nothing twice and
 * nothing left out.
 */
final class StreamsChecks {
    private static final int PARTITIONS = 2;
    private static final int KILLS = 2;
    private static final int SEEN_BEFORE_A_KILL = 300;
    private static final int WORDS_PER_LINE = 4;
    private static final int VOCABULARY = 40;
    private static final int PAUSE_MS = 4; // between two lines

    private final String server;
    private final String run = "words-" + UUID.randomUUID().toString().substring(0, 8);
    private final String input = run + "-in";
    private final String output = run + "-out";
    private final File log = File.createTempFile("streams", ".log");
    private final Map<String, Long> written = new HashMap<>();
    private final Map<String, List<Long>> seen = new HashMap<>();
    private volatile boolean enough;

    private StreamsChecks(String server) throws Exception {
        this.server = server;
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(arguments[1], arguments[0]);
        StreamsChecks job = new StreamsChecks(arguments[0]);
        checks.check("exactly-once-after-kills", job::killedWhileWordsCome);
        try (Admin admin = Admin.create(Checks.settings(arguments[0]))) {
            checks.check("changelog-is-compacted", () -> Checks.equal("compact",
                policy(admin, job.run + "-" + WordCount.STORE + "-changelog")));
            checks.check("repartition-topic-is-purged", () -> {
                String topic = job.run + "-words-repartition";
                Checks.equal("delete", policy(admin, topic));
                long purged = 0;
                for (int n = 0; n < PARTITIONS; n++) {
                    TopicPartition of = new TopicPartition(topic, n);
                    purged += admin.listOffsets(Map.of(of, OffsetSpec.earliest()))
                        .partitionResult(of).get().offset();
                }
                Checks.that(purged > 0, "all is there still");
            });
        }
        checks.end();
    }

    private static String policy(Admin admin, String topic) throws Exception {
        ConfigResource of = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin.describeConfigs(List.of(of)).all().get().get(of).get("cleanup.policy").value();
    }

    private void killedWhileWordsCome() throws Exception {
        try (Admin admin = Admin.create(Checks.settings(server))) {
            admin.createTopics(List.of(new NewTopic(input, PARTITIONS, (short) 1),
                new NewTopic(output, PARTITIONS, (short) 1))).all().get();
        }
        Thread writer = new Thread(this::write, "writer");
        writer.setDaemon(true);
        writer.start();
        File state = Files.createTempDirectory("streams").toFile();
        var settings = Checks.settings(server, "isolation.level", "read_committed",
            "enable.auto.commit", false);
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(settings, text, text)) {
            List<TopicPartition> all = List.of(
                new TopicPartition(output, 0), new TopicPartition(output, 1));
            reader.assign(all);
            reader.seekToBeginning(all);
            for (int kills = 0; kills <= KILLS; kills++) {
                try (Child job = new Child(log, "WordCount", server, run, input, output,
                        state.getPath())) {
                    readUntil(reader, job, count() + SEEN_BEFORE_A_KILL);
                    if (kills == KILLS) {
                        enough = true;
                        writer.join();
                        readUntil(reader, job, total());
                        job.stop();
                        reader.poll(Duration.ofMillis(300)).forEach(
                            r -> take(r.key(), r.value()));
                    } else {
                        Thread.sleep(WordCount.COMMIT_INTERVAL_MS / 2); // a transaction is open
                        job.kill();
                    }
                }
            }
        }
        System.err.println(total() + " words, " + KILLS + " kills");
        Map<String, List<Long>> expected = written.entrySet().stream().collect(Collectors.toMap(
            Map.Entry::getKey, e -> LongStream.rangeClosed(1, e.getValue()).boxed().toList()));
        for (String word : expected.keySet()) {
            Checks.equal(expected.get(word), seen.get(word));
        }
        Checks.equal(expected.keySet(), seen.keySet());
    }

    private void write() {
        Random random = new Random(17);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(Checks.settings(server), text, text)) {
            while (!enough) {
                List<String> words = new ArrayList<>();
                for (int n = 0; n < WORDS_PER_LINE; n++) {
                    words.add("word" + random.nextInt(VOCABULARY));
                }
                producer.send(new ProducerRecord<>(input, String.join(" ", words)));
                words.forEach(word -> written.merge(word, 1L, Long::sum));
                Thread.sleep(PAUSE_MS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void readUntil(KafkaConsumer<String, String> reader, Child job, long wanted)
            throws Exception {
        Checks.until(wanted + " counts (" + log + ")", () -> {
            Checks.that(job.alive(), "the job ended: " + log);
            reader.poll(Duration.ofMillis(50)).forEach(r -> take(r.key(), r.value()));
            return count() >= wanted;
        });
    }

    private void take(String word, String count) {
        seen.computeIfAbsent(word, w -> new ArrayList<>()).add(Long.parseLong(count));
    }

    private long count() {
        return seen.values().stream().mapToLong(List::size).sum();
    }

    private long total() {
        return written.values().stream().mapToLong(Long::longValue).sum();
    }
}
