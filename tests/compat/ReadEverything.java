// Reads all partitions of a topic to their end with the Java consumer, one line a record.
//
//   java -cp CLASSPATH ReadEverything.java BOOTSTRAP TOPIC read_committed|read_uncommitted
//
// Lines: partition, offset, timestamp type, timestamp, key, value, headers; bytes as base64, - for
// null. The last line of a partition has what it answers for each distinct timestamp of it.
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ReadEverything {
    static String text(byte[] bytes) {
        return bytes == null ? "-" : "b" + Base64.getEncoder().encodeToString(bytes);
    }

    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0], "isolation.level", arguments[2],
            "enable.auto.commit", false, "max.partition.fetch.bytes", 700);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(arguments[1]).stream()
                .map(p -> new TopicPartition(p.topic(), p.partition()))
                .collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            Map<TopicPartition, TreeSet<Long>> times = new HashMap<>();
            List<TopicPartition> open = new ArrayList<>(partitions);
            while (!open.isEmpty()) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    StringBuilder line = new StringBuilder();
                    line.append(r.partition()).append('\t').append(r.offset()).append('\t')
                        .append(r.timestampType().name).append('\t').append(r.timestamp())
                        .append('\t').append(text(r.key())).append('\t').append(text(r.value()));
                    r.headers().forEach(h -> line.append('\t')
                        .append(text(h.key().getBytes(StandardCharsets.UTF_8)))
                        .append('=').append(text(h.value())));
                    System.out.println(line);
                    times.computeIfAbsent(new TopicPartition(r.topic(), r.partition()),
                        p -> new TreeSet<>()).add(r.timestamp());
                }
                open.removeIf(p -> consumer.position(p) >= ends.get(p));
            }
            times.forEach((partition, asked) -> {
                StringBuilder line = new StringBuilder("times\t" + partition.partition());
                for (long time : asked) {
                    if (time >= 0) {
                        line.append('\t').append(time).append('=').append(
                            consumer.offsetsForTimes(Map.of(partition, time))
                                .get(partition).offset());
                    }
                }
                System.out.println(line);
            });
        }
    }
}
