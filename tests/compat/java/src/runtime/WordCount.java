import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/** Counts words exactly once: BOOTSTRAP ID INPUT OUTPUT DIRECTORY. Every new count of a word goes out. */
final class WordCount {
    static final String STORE = "counts";
    static final int COMMIT_INTERVAL_MS = 400;

    public static void main(String[] arguments) {
        String id = arguments[1];
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(STORE)
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(String::valueOf)
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        Properties settings = Checks.settings(arguments[0],
            StreamsConfig.APPLICATION_ID_CONFIG, id,
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
            StreamsConfig.STATE_DIR_CONFIG, arguments[4],
            StreamsConfig.REPLICATION_FACTOR_CONFIG, 1,
            StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1,
            StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, COMMIT_INTERVAL_MS,
            StreamsConfig.producerPrefix("linger.ms"), 5, // long before the commit
            StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 200,
            StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0, // no count is left out
            StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest",
            StreamsConfig.consumerPrefix("group.instance.id"), id, // back at once after a kill
            StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
