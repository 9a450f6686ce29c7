import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.common.config.ConfigResource;

/**
 * LogCompactionTester with small segments: nothing may differ, and something must be gone.
 *
 * The tool names its topics itself and knows no segment size; they get one as soon as they are there.
 */
final class CompactionCheck {
    private static final String SEGMENT_BYTES = "16384";
    private static final Pattern TOPIC = Pattern.compile("log-cleaner-test-.*");
    private static final Pattern REDUCTION = Pattern.compile(
        "(\\d+) rows of data produced, (\\d+) rows of data consumed \\((-?\\d+)[.,]\\d% reduction");
    // Each key comes five times. The tool only waits and does not look; its help says milliseconds
    // of what are seconds.
    private static final String[] AMOUNT = {"--messages", "40000", "--duplicates", "5",
        "--percent-deletes", "20", "--topics", "2", "--compression-type", "lz4", "--sleep", "15"};
    private static final Pattern PRODUCED = Pattern.compile("produce requests to (\\S+)");
    private static final Pattern CONSUMED = Pattern.compile("consumed messages to (\\S+)");
    private static final int REDUCTION_MIN = 30; // percent

    public static void main(String[] arguments) {
        Checks checks = new Checks(arguments[1], arguments[0]);
        Thread watch = new Thread(() -> makeSmall(arguments[0]), "small segments");
        watch.setDaemon(true);
        watch.start();
        checks.check("log-compaction-tester", () -> {
            String[] all = new String[AMOUNT.length + 2];
            System.arraycopy(AMOUNT, 0, all, 2, AMOUNT.length);
            all[0] = "--bootstrap-server";
            all[1] = arguments[0];
            Tool.Result result = Tool.run("LogCompactionTester", all);
            for (int again = 0; again < 2 && endedEarly(result.out() + result.err()); again++) {
                result = Tool.run("LogCompactionTester", all);
            }
            String told = result.fine();
            Checks.has(told, ", 0 mismatches.");
            Checks.has(told, "Data verification is completed");
            Matcher reduced = REDUCTION.matcher(told);
            Checks.that(reduced.find(), told);
            System.err.println(reduced.group());
            Checks.that(Integer.parseInt(reduced.group(3)) >= REDUCTION_MIN, reduced.group());
        });
        checks.end();
    }

    /**
     * Whether the tool's consumer took a poll without a record for the end of the topic. Kafka's
     * returns one where max.poll.records was reached with the last record of a batch whose end is
     * compacted away. Then all is there up to where it stopped, and nothing above.
     */
    private static boolean endedEarly(String told) throws IOException {
        Matcher produced = PRODUCED.matcher(told);
        Matcher consumed = CONSUMED.matcher(told);
        if (!told.contains("Data validation failed") || !produced.find() || !consumed.find()) {
            return false;
        }
        Map<String, Long> reached = new HashMap<>();
        Map<String, Long> seen = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(consumed.group(1)))) {
            String[] words = line.split("\t"); // topic, key, value (a number that grows), u or d
            reached.merge(words[0], Long.parseLong(words[2]), Math::max);
            seen.put(words[0] + "\t" + words[1], Long.parseLong(words[2]));
        }
        Map<String, String[]> last = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(produced.group(1)))) {
            String[] words = line.split("\t");
            last.put(words[0] + "\t" + words[1], words);
        }
        boolean stopped = false;
        for (Map.Entry<String, String[]> one : last.entrySet()) {
            String[] words = one.getValue();
            long value = Long.parseLong(words[2]);
            boolean above = value > reached.getOrDefault(words[0], -1L);
            stopped |= above;
            if (!above && words[3].equals("u") && seen.getOrDefault(one.getKey(), -1L) != value) {
                return false;
            }
        }
        return stopped;
    }

    private static void makeSmall(String server) {
        Set<String> done = new HashSet<>();
        AlterConfigOp small = new AlterConfigOp(
            new ConfigEntry("internal.segment.bytes", SEGMENT_BYTES), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(Checks.settings(server))) {
            while (true) {
                for (String topic : admin.listTopics().names().get()) {
                    if (TOPIC.matcher(topic).matches() && !done.contains(topic)) {
                        admin.incrementalAlterConfigs(Map.of(
                            new ConfigResource(ConfigResource.Type.TOPIC, topic), List.of(small)))
                            .all().get();
                        done.add(topic);
                    }
                }
                Thread.sleep(5);
            }
        } catch (Exception e) {
            e.printStackTrace();
        }
    }
}
